"""`herd pause`, `herd resume` and `herd drain`: what they say, and what other commands show then."""

import json
from typing import Any

import pytest

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.cli.herd_command import invoke

pytestmark = pytest.mark.redis


def report(redis: Any, name: str = "w@test", state: str = "ready") -> None:
    status = WorkerStatus(name=name, state=state, model="m", device="cpu", slots=4)
    run_call(redis, Reports().report_worker(status))


def paused(redis: Any, tenant: str = "default") -> list[bytes]:
    found: list[bytes] = redis.zrange(Keys(tenant).key("paused"), 0, -1)
    return found


@pytest.mark.parametrize("words", [("m",), ("herd.m",), ("--model", "m")])
def test_a_queue_is_meant_by_its_name_or_its_model(
    redis: Any, redis_url: str, words: tuple[str, ...]
) -> None:
    report(redis)
    done = invoke("pause", *words, HERD_REDIS_URL=redis_url)
    assert (done.stdout, done.stderr) == ("m is paused until herd resume --model m\n", "")
    assert paused(redis) == [b"herd.m"]
    assert invoke("resume", *words, HERD_REDIS_URL=redis_url).stdout == "m is resumed\n"
    assert invoke("resume", *words, HERD_REDIS_URL=redis_url).stdout == "m was not paused\n"


def test_a_pause_is_of_one_tenant_and_may_end_by_itself(redis: Any, redis_url: str) -> None:
    done = invoke("pause", "herd.acme:m", "--tenant", "acme", "--for", "2h", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 0
    assert done.stdout.startswith("m is paused until 20")
    assert done.stdout.endswith(" UTC\n")
    assert (paused(redis, "acme"), paused(redis)) == ([b"herd.acme:m"], [])


@pytest.mark.parametrize(
    "words",
    [
        ("pause",),
        ("pause", "m", "--model", "m"),
        ("pause", "m", "--for", "soon"),
        ("pause", "m", "--for", "400d"),
        ("pause", "herd.acme:m"),
        ("resume",),
        ("drain", "nobody"),
        ("drain", "w@test", "--undo", "--wait"),
        ("drain", "w@test", "--undo", "--for", "1h"),
    ],
)
def test_a_wrong_word_is_one_line(redis: Any, redis_url: str, words: tuple[str, ...]) -> None:
    report(redis)
    done = invoke(*words, HERD_REDIS_URL=redis_url)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert redis.exists(Keys().key("paused"), Keys().key("drained")) == 0


def test_a_name_that_nobody_serves_is_paused_with_a_word_on_it(redis: Any, redis_url: str) -> None:
    report(redis)
    done = invoke("pause", "mm", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 0
    assert "no worker serves mm" in done.stderr
    assert "Did you mean m?" in done.stderr


def test_what_is_paused_shows_everywhere(redis: Any, redis_url: str) -> None:
    report(redis)
    report(redis, "other@test", "drained")
    invoke("pause", "m", "--for", "2h", HERD_REDIS_URL=redis_url)
    note = "m is paused for another 1 h 59 m: its jobs wait. herd resume --model m ends that"
    shown = invoke("status", HERD_REDIS_URL=redis_url).stdout
    assert note in shown
    assert "other@test is drained: takes no jobs; herd drain --undo ends that" in shown  # or its --for
    found = json.loads(invoke("status", "--json", HERD_REDIS_URL=redis_url).stdout)
    (queue,) = found["queues"]
    assert (queue["is_paused"], queue["drained"], queue["workers"]) == (True, 1, 2)

    with Client(redis_url, model="m") as client:
        client.submit(prompt="x", job_id="a")
    assert note in invoke("jobs", HERD_REDIS_URL=redis_url).stdout
    assert note in invoke("status", "a", HERD_REDIS_URL=redis_url).stdout


def test_a_worker_is_drained_for_each_tenant_that_is_named(redis: Any, redis_url: str) -> None:
    for tenant in ("acme", "globex"):
        status = WorkerStatus(name="w@test", state="ready", model="m", device="cpu", slots=4)
        run_call(redis, Reports(tenant).report_worker(status))
    words = ("w@test", "--tenant", "acme", "--tenant", "globex")
    done = invoke("drain", *words, HERD_REDIS_URL=redis_url)
    assert done.stdout == 2 * "w@test takes no jobs until herd drain --undo w@test\n"
    for tenant in ("acme", "globex"):
        assert redis.zrange(Keys(tenant).key("drained"), 0, -1) == [b"w@test"]
    assert (
        invoke("drain", "--undo", *words, HERD_REDIS_URL=redis_url).stdout == 2 * "w@test takes jobs again\n"
    )
    done = invoke("drain", "--undo", "w@test", HERD_REDIS_URL=redis_url)
    assert done.stdout == "w@test was not drained\n"


def test_who_waits_returns_once_it_is_drained(redis: Any, redis_url: str) -> None:
    report(redis, state="drained")
    done = invoke("drain", "w@test", "--wait", HERD_REDIS_URL=redis_url)
    assert done.stdout.splitlines()[-1] == "w@test is drained"


@pytest.mark.long
def test_who_waits_for_a_worker_that_hears_of_no_drain_is_told(
    redis: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_herd.cli.pause.BEGIN_S", 0.3)
    report(redis)
    done = invoke("drain", "w@test", "--wait", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 2
    assert "it does not hear of this drain" in done.stderr
