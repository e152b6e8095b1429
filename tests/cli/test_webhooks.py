"""`herd webhooks`, as a person meets it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.outbox import Outbox
from llama_herd.tasks.ledger.redis_call import run_call
from tests.chaos.harness.patience import wait_until
from tests.cli.herd_command import fork_herd, invoke
from tests.tasks.herd import JOB, Herd
from tests.tasks.webhooks.sender_thread import SenderThread

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("away")]

URL = "https://example.com/hook?key=hidden"
OWN_SECRET = "whsec_" + 32 * "A"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One without gateways of other tests, which would send what is due here."""
    with EmbeddedRedis() as server:
        yield server


def herd_webhooks(redis_url: str, *words: str) -> str:
    """What a command prints."""
    done = invoke("webhooks", *words, HERD_REDIS_URL=redis_url)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def end_a_job(redis: Redis, job_id: str) -> None:
    herd = Herd(redis, Ledger(lease_ms=60_000, worker="w"))
    herd.submit(job_id, JOB.model_copy(update={"webhook": URL, "webhook_secret": OWN_SECRET}))
    run_call(redis, herd.ledger.cancel(job_id))


def test_a_secret_is_shown_once_and_stays_until_another_is_wanted(redis: Redis, redis_url: str) -> None:
    hosts = ("--host", "a.example.com", "--host", "b.example.com")
    secret = herd_webhooks(redis_url, "set", URL, "--tenant", "acme", *hosts, "--no-jobs").strip()
    assert secret.startswith("whsec_")
    assert redis.hget("herd:acme:webhook", "jobs") == b"0"
    shown = herd_webhooks(redis_url, "show", "--tenant", "acme")
    assert secret not in shown
    assert "hidden" not in shown
    facts = json.loads(shown)
    assert (facts["tenant"], facts["url"], facts["jobs"]) == ("acme", "https://example.com/hook", False)
    assert facts["hosts"] == ["a.example.com", "b.example.com"]
    assert herd_webhooks(redis_url, "set", URL, "--tenant", "acme") == "the secret stays\n"
    assert secret in str(redis.hget("herd:webhooks", "acme"))
    assert redis.hget("herd:acme:webhook", "jobs") == b"1"
    other = herd_webhooks(redis_url, "set", URL, "--tenant", "acme", "--new-secret").strip()
    assert other.startswith("whsec_")
    assert other != secret
    assert secret in str(redis.hget("herd:webhooks", "acme"))  # it signs for a day more
    shown = herd_webhooks(redis_url, "show", "--tenant", "acme")
    assert json.loads(shown)["old_until_ms"] > json.loads(shown)["created_ms"]
    last = herd_webhooks(redis_url, "set", URL, "--tenant", "acme", "--new-secret", "--at-once").strip()
    assert not any(one in shown for one in (secret, other, last))
    assert not any(one in str(redis.hget("herd:webhooks", "acme")) for one in (secret, other))
    assert "removed; 0" in herd_webhooks(redis_url, "remove", "--tenant", "acme")
    assert not redis.keys("*")


def test_a_secret_from_a_file_is_not_shown(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    assert herd_webhooks(redis_url, "set", URL, "--secret-file", "secret") == "the secret stays\n"
    assert SECRET in str(redis.hget("herd:webhooks", "default"))


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_short", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_é"])
def test_a_wrong_secret_is_one_line_without_it(
    redis: Redis, redis_url: str, tmp_path: Path, text: str
) -> None:
    (tmp_path / "secret").write_text(text)
    done = invoke("webhooks", "set", URL, "--secret-file", "secret", HERD_REDIS_URL=redis_url)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert len(text) < 7 or text not in done.stderr
    assert not redis.keys("*")


@pytest.mark.parametrize(
    "words",
    [
        *(
            ("set", "example.com"),
            ("set", "https://user:hunter2@example.com/"),
            ("set", URL, "--host", "HTTP://x"),
        ),
        *(("set", URL, "--tenant", "a:b"), ("set", URL, "--secret-file", "nowhere")),
        *(("show",), ("remove",), ("retry",), ("retry", "x"), ("retry", "x", "--all"), ("listen",)),
    ],
    ids=" ".join,
)
def test_a_wrong_word_is_one_line(redis_url: str, words: tuple[str, ...]) -> None:
    done = invoke("webhooks", *words, HERD_REDIS_URL=redis_url)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "hunter2" not in done.stderr


def test_what_waits_and_what_is_dead_is_listed_and_tried_again(redis: Redis, redis_url: str) -> None:
    herd_webhooks(redis_url, "set", URL)
    assert herd_webhooks(redis_url, "list") == "everything is delivered\n"
    for job_id in ("a", "b", "c"):
        end_a_job(redis, job_id)
    for entry in run_call(redis, Outbox().due(2, 1)):
        run_call(redis, Outbox().give_up(entry.failed("HTTP 410")))
    lines = [json.loads(line) for line in herd_webhooks(redis_url, "list", "--json").splitlines()]
    assert [(line["id"], line["is_dead"], line["tries"]) for line in lines] == [
        *(("c", False, 0), ("a", True, 1), ("b", True, 1))
    ]
    assert {line["url"] for line in lines} == {"https://example.com/hook"}
    assert {line["own_secret"] for line in lines} == {True}
    assert OWN_SECRET not in json.dumps(lines)
    table = herd_webhooks(redis_url, "list")
    assert all(word in table for word in ("msg_a", "job.cancelled", "dead", "waiting", "HTTP 410"))
    assert "hidden" not in table
    assert herd_webhooks(redis_url, "retry", "a") == "due now: 1\n"
    assert herd_webhooks(redis_url, "retry", "--all") == "due now: 1\n"
    assert "dead" not in herd_webhooks(redis_url, "list")
    assert "removed; 3" in herd_webhooks(redis_url, "remove")


def test_a_listener_checks_and_tells_what_comes(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    herd_webhooks(redis_url, "set", "http://127.0.0.1:1/", "--secret-file", "secret")
    process = fork_herd(tmp_path, "webhooks", "listen", "--port", "0", HERD_REDIS_URL=redis_url)
    try:
        said = process.stderr.readline()
        url = said.split()[-1]
        herd_webhooks(redis_url, "set", url)
        herd = Herd(redis, Ledger(lease_ms=60_000, worker="w"))
        with SenderThread(redis_url):
            herd.submit("a")
            run_call(redis, herd.ledger.cancel("a"))
            told = process.stdout.readline()
            wait_until(lambda: not redis.exists("herd:default:outbox"), "it is delivered")
            herd_webhooks(redis_url, "set", url, "--new-secret", "--at-once")
            wait_until(lambda: _end_and_count(redis, herd), "the sender has the new secret")
            refused = next(line for line in process.stdout if "refused" in line)
    finally:
        process.terminate()
        process.wait()
    assert told.startswith('msg_a  {"type":"job.cancelled","timestamp":"')
    assert "refused: No matching signature" in refused


def _end_and_count(redis: Redis, herd: Herd) -> bool:
    """End one job more, and say whether any was refused."""
    job_id = f"b{redis.incr('count')}"
    herd.submit(job_id)
    run_call(redis, herd.ledger.cancel(job_id))
    return any(b"HTTP 400" in raw for raw in redis.hvals("herd:default:outbox:entries"))
