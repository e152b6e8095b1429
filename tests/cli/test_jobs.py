"""`herd jobs`, `herd status JOB` and `herd cancel --queue`: what they show, ask and refuse."""

import json
import time

import pytest
from redis import Redis

from llama_herd.cli.job_options import parse_duration
from llama_herd.errors import BadInput
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.answers import CancelReason
from llama_herd.tasks.ledger.ledger import Ledger
from tests.cli.herd_command import invoke
from tests.tasks.herd import Herd
from tests.tasks.ledger.test_dead_letters import poison

with_redis = pytest.mark.redis


@with_redis
def test_jobs_are_listed_with_what_is_wrong(redis_url: str) -> None:
    assert invoke("jobs", HERD_REDIS_URL=redis_url).stdout == "no job runs or waits\n"
    assert invoke("jobs", "--model", "other", HERD_REDIS_URL=redis_url).stdout == "no such job\n"
    with Client(redis_url) as client:
        for job_id in ("a", "b"):
            client.submit(prompt="x", job_id=job_id, model="m")
    with Client(redis_url, tenant="acme") as client:
        client.submit(prompt="x", job_id="c", model="other")
    lines = invoke("jobs", HERD_REDIS_URL=redis_url).stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["a", "unserved", "m"], ["b", "unserved", "m"]]
    place = slice(lines[0].index("place"), lines[0].index("wait"))
    assert [line[place].strip() for line in lines[1:3]] == ["1", "2"]
    assert lines[3:] == ["no worker serves m: its jobs wait. Served are: none"]
    limited = invoke("jobs", "--limit", "1", "--json", "--older-than", "1ms", HERD_REDIS_URL=redis_url)
    assert [json.loads(line)["job_id"] for line in limited.stdout.splitlines()] == ["a"]
    others = invoke("jobs", "--tenant", "acme", "--json", HERD_REDIS_URL=redis_url).stdout
    assert json.loads(others)["job_id"] == "c"
    assert invoke("jobs", "--model", "other", HERD_REDIS_URL=redis_url).stdout.startswith("no such job")


@with_redis
def test_a_job_with_a_deadline_ends_though_no_worker_is_up(redis_url: str) -> None:
    """Else the command would wait until one comes."""
    done = invoke("generate", "--timeout", "1ms", "x", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].endswith(" ended: deadline")


@with_redis
def test_the_status_of_a_job_is_told(redis_url: str) -> None:
    with Client(redis_url) as client:
        client.submit(prompt="x", job_id="a", model="m")
    shown = invoke("status", "a", HERD_REDIS_URL=redis_url).stdout
    facts = [line.split() for line in shown.splitlines()]
    assert ["state", "unserved"] in facts
    assert ["place", "1", "in", "the", "queue"] in facts
    assert "no worker serves m: its jobs wait. Served are: none" in shown
    found = json.loads(invoke("status", "a", "--json", HERD_REDIS_URL=redis_url).stdout)
    assert (found["state"], found["position"], found["estimated_wait_s"]) == ("unserved", 1, None)
    assert invoke("status", "nothing", HERD_REDIS_URL=redis_url).exit_code == 2


@with_redis
def test_the_status_of_a_job_for_later_says_when_it_is_due(redis_url: str) -> None:
    with Client(redis_url) as client:
        client.submit(prompt="x", job_id="a", not_before=int(1000 * time.time()) + 7_200_000)
    facts = [line.split() for line in invoke("status", "a", HERD_REDIS_URL=redis_url).stdout.splitlines()]
    assert ["state", "delayed"] in facts
    assert ["due", "in", "1", "h", "59", "m"] in facts


@with_redis
def test_no_width_cuts_off_what_a_job_is_noted_with(redis_url: str) -> None:
    with Client(redis_url) as client:
        client.submit(prompt="x", job_id="a", model="m", metadata={"order": "%" * 256})
    assert invoke("status", "a", HERD_REDIS_URL=redis_url).stdout.count("%") == 256


@with_redis
def test_a_job_that_is_tried_again_says_when_and_why(redis: Redis, redis_url: str) -> None:
    herd = Herd(redis, Ledger(lease_ms=60_000))
    herd.submit("a")
    herd.claim("a")
    herd.put_back("a", delay_ms=7_200_000)
    heads, row = invoke("jobs", HERD_REDIS_URL=redis_url).stdout.splitlines()[:2]
    assert row[heads.index("retries") :].startswith("1 of 3, next in 1 h 59 m")
    assert (
        "1 of 3, next in 1 h 59 m, after out_of_memory"
        in invoke("status", "a", HERD_REDIS_URL=redis_url).stdout
    )


@with_redis
def test_the_status_of_a_failed_job_says_why(redis: Redis, redis_url: str) -> None:
    poison(Herd(redis, Ledger(lease_ms=60_000)), "a")
    lines = invoke("status", "a", HERD_REDIS_URL=redis_url).stdout.splitlines()
    facts = [line.split() for line in lines]
    assert ["state", "failed"] in facts
    assert ["error", "poisoned:", "3", "workers", "died", "while"] in [fact[:6] for fact in facts]
    found = json.loads(invoke("status", "a", "--json", HERD_REDIS_URL=redis_url).stdout)
    message = "3 workers died while preparing or running this job"
    assert found["error"] == {"code": "poisoned", "message": message, "retriable": False}
    shown = json.loads(invoke("dead", "show", "a", HERD_REDIS_URL=redis_url).stdout)
    assert shown["record"]["error"] == shown["events"][-1]["error"] == found["error"]


@with_redis
@pytest.mark.parametrize("reason", ["cancelled", "revoked", "deadline"])
def test_the_status_of_a_job_that_ended_early_says_what_was_asked_for(
    redis_url: str, reason: CancelReason
) -> None:
    with Client(redis_url) as client:
        client.submit(prompt="x", job_id="a")
        client.cancel("a", reason)
    shown = invoke("status", "a", HERD_REDIS_URL=redis_url).stdout
    assert ["reason", reason] in [line.split() for line in shown.splitlines()]
    assert "error" not in shown


@with_redis
def test_a_queue_is_cancelled_only_by_somebody_who_is_sure(redis_url: str) -> None:
    with Client(redis_url) as client:
        for _ in range(3):
            client.submit(prompt="x", model="m")
        refused = invoke("cancel", "--queue", "m", HERD_REDIS_URL=redis_url)
        assert refused.exit_code == 2
        assert (
            refused.stderr
            == "herd: 3 jobs of model m would be cancelled. Fix: --yes cancels without asking\n"
        )
        assert client.status().pending == 3
    done = invoke("cancel", "--queue", "m", "--yes", HERD_REDIS_URL=redis_url)
    assert done.stdout == "3 jobs cancelled\n"
    again = invoke("cancel", "--queue", "m", "--yes", HERD_REDIS_URL=redis_url)
    assert again.stdout == "no job of model m waits or runs\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["cancel"], "needs one of"),
        (["cancel", "a", "--queue", "m"], "needs one of"),
        (["jobs", "--state", "over"], "must be one of running"),
        (["jobs", "--older-than", "soon"], "--older-than soon: must be a time such as"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], complaint: str) -> None:
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert complaint in refused.stderr


def test_a_span_of_time_is_read_with_its_unit() -> None:
    spans = {"500ms": 0.5, "90": 90, "90s": 90, "1.5m": 90, "2h": 7200, "1d": 86_400}
    assert {text: parse_duration(text, "--x") for text in spans} == spans
    for text in ("", "0", "-1s", "5y", "1e3", "1h30m"):
        with pytest.raises(BadInput):
            parse_duration(text, "--x")
