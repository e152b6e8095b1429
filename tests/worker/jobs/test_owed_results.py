"""Results in a Redis of their own: stored, or owed in the ledger before the message goes."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.message import TASK_NAME, Envelope
from llama_herd.worker.broker.delivery import Debt
from llama_herd.worker.broker.result_server import RESULT_SERVER, ResultsAway, ResultServer
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.payer import Payer
from llama_herd.worker.jobs.tenancy import Tenancy
from tests.chaos.harness.patience import wait_until
from tests.tasks.herd import Herd, end, started
from tests.worker.jobs.celery_app import app_of_worker
from tests.worker.jobs.tenancies import alone, new_tenancy

pytestmark = pytest.mark.redis

#: How long a record is kept once nothing is owed of it any more.
TTL_S = 60


@pytest.fixture
def results() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(appendonly=True) as server:
        yield server
        RESULT_SERVER.is_away = False


@pytest.fixture
def app(redis_url: str, results: EmbeddedRedis) -> Celery:
    return app_of_worker(redis_url, results.url)


@pytest.fixture
def tenancy(redis: Redis, redis_url: str, results: EmbeddedRedis, app: Celery) -> Tenancy:
    ledger = Ledger(stream_ttl_s=TTL_S)
    return new_tenancy(redis, ledger, app=app, redis_url=redis_url, result_url=results.url)


@pytest.fixture
def herd(redis: Redis, tenancy: Tenancy) -> Herd:
    return Herd(redis, tenancy.ledger)


@pytest.fixture
def finisher(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Finisher]:
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.OWED_MS", 1)
    finisher = Finisher(redis)
    yield finisher
    finisher.stop()


@pytest.fixture
def payer(tenancy: Tenancy, finisher: Finisher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Payer]:
    """Not started."""
    monkeypatch.setattr("llama_herd.worker.jobs.payer.INTERVAL_S", 0.05)
    payer = Payer(alone(tenancy), finisher)
    yield payer
    payer.stop()


class Held(Debt):
    """A job's message in a worker's hands."""

    def __init__(self, app: Celery, job_id: str, links: Any = None, **headers: object) -> None:
        envelope = Envelope.from_request({"id": job_id, **headers}, links, "herd.m")
        super().__init__(app, job_id, envelope.text.encode())
        self.is_acked = Event()

    def close(self) -> None:
        self.is_acked.set()

    def acknowledge(self) -> None:
        self.is_acked.set()


def ended(herd: Herd, job_id: str, links: Any = None) -> None:
    """A job with its final event on record, which a bare message with these links has brought."""
    herd.submit(job_id)
    envelope = Envelope.from_request({"id": job_id}, links, "herd.m")
    herd.redis.hset(herd.ledger.job_key(job_id), "envelope", envelope.text)
    herd.claimed(job_id)
    assert herd.kinds("one", started(job_id), end(job_id, 2, 0, finish_reason="length")) == ["ok", "ok"]


def links_to(app: Celery, queue: str) -> dict[str, Any]:
    link = app.signature("shop.next", queue=queue)
    return {"callbacks": [link], "errbacks": None, "chain": None, "chord": None}


def num_owed(herd: Herd) -> int:
    return int(herd.redis.zcard(herd.ledger.key("owed")))


def owe(herd: Herd, finisher: Finisher, tenancy: Tenancy, job_id: str, links: Any = None) -> None:
    """Settle a job whose result cannot be stored now, until its message is acknowledged."""
    ended(herd, job_id, links)
    held = Held(tenancy.app, job_id, links)
    finisher.settle(tenancy, job_id, [held])
    assert held.is_acked.wait(60)
    key = herd.ledger.job_key(job_id)
    wait_until(lambda: not herd.redis.hexists(key, "settling"), "its turn is over")


def test_a_result_goes_to_its_own_redis_and_nothing_of_it_to_the_jobs(
    herd: Herd, finisher: Finisher, tenancy: Tenancy, results: EmbeddedRedis
) -> None:
    owe(herd, finisher, tenancy, "job")
    assert num_owed(herd) == 0
    with Redis.from_url(results.url) as others:
        assert others.exists("celery-task-meta-job")
    assert not herd.redis.exists("celery-task-meta-job")
    assert herd.redis.hget(herd.ledger.job_key("job"), "settled") == b"elsewhere"


def test_what_is_owed_outlives_the_record_and_is_paid_by_another_worker(
    herd: Herd, finisher: Finisher, tenancy: Tenancy, payer: Payer, results: EmbeddedRedis
) -> None:
    results.stop()
    owe(herd, finisher, tenancy, "job")
    key = herd.ledger.job_key("job")
    assert num_owed(herd) == 1
    assert herd.redis.ttl(key) > 600_000
    assert herd.redis.ttl(herd.ledger.events_key("job")) > 600_000
    payer.start()
    results.start()
    wait_until(lambda: num_owed(herd) == 0, "it is paid")
    assert tenancy.app.backend.get_state("job") == "SUCCESS"
    assert 0 < herd.redis.ttl(key) <= TTL_S
    assert 0 < herd.redis.ttl(herd.ledger.events_key("job")) <= TTL_S


def test_what_is_owed_is_paid_by_a_worker_whose_results_lie_beside_the_jobs(
    herd: Herd,
    finisher: Finisher,
    tenancy: Tenancy,
    results: EmbeddedRedis,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody has given the other Redis up, and taken its address away."""
    results.stop()
    owe(herd, finisher, tenancy, "job")
    assert num_owed(herd) == 1
    RESULT_SERVER.is_away = False  # in the process of another worker
    monkeypatch.setattr("llama_herd.worker.jobs.payer.UNHURRIED_INTERVAL_S", 0.05)
    other = new_tenancy(herd.redis, tenancy.ledger, app=app_of_worker(redis_url), redis_url=redis_url)
    payer = Payer(alone(other), finisher)
    payer.start()
    wait_until(lambda: num_owed(herd) == 0, "it is paid")
    payer.stop()
    assert other.app.backend.get_state("job") == "SUCCESS"
    assert 0 < herd.redis.ttl(herd.ledger.job_key("job")) <= TTL_S


def test_links_are_sent_at_once_and_not_again_with_the_result(
    herd: Herd, finisher: Finisher, tenancy: Tenancy, payer: Payer, results: EmbeddedRedis
) -> None:
    results.stop()
    owe(herd, finisher, tenancy, "job", links_to(tenancy.app, "shop"))
    assert herd.redis.llen("shop") == 1
    payer.start()
    results.start()
    wait_until(lambda: num_owed(herd) == 0, "it is paid")
    assert tenancy.app.backend.get_state("job") == "SUCCESS"
    assert herd.redis.llen("shop") == 1


@pytest.fixture
def many_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is being settled: none comes when it is over, and takes the turn again."""
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.REPORT_S", 0.0005)


@pytest.mark.parametrize("others", [1, 300])
def test_a_redis_that_is_away_holds_up_nobody(
    many_reports: None, herd: Herd, finisher: Finisher, tenancy: Tenancy, results: EmbeddedRedis, others: int
) -> None:
    """The first to find out may wait for some seconds, and nobody after that."""
    results.stop()
    owe(herd, finisher, tenancy, "first")
    assert RESULT_SERVER.is_away
    for number in range(others):
        owe(herd, finisher, tenancy, f"job-{number}")
    assert num_owed(herd) == others + 1


@pytest.mark.long
def test_a_redis_that_is_frozen_holds_up_the_first_alone(
    herd: Herd,
    finisher: Finisher,
    tenancy: Tenancy,
    payer: Payer,
    results: EmbeddedRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed, note = list[RedisError](), RESULT_SERVER.note_failure

    def noted(error: RedisError) -> None:
        failed.append(error)
        note(error)

    monkeypatch.setattr(RESULT_SERVER, "note_failure", noted)
    os.kill(results.pid, signal.SIGSTOP)
    try:
        payer.start()
        for number in range(20):
            owe(herd, finisher, tenancy, f"job-{number}")
        assert len(failed) == 1, "who asks a frozen Redis is held up until that has failed"
    finally:
        os.kill(results.pid, signal.SIGCONT)
    wait_until(lambda: num_owed(herd) == 0, "all are paid")


def test_a_purged_job_s_result_is_deleted_though_its_redis_is_away_then(
    herd: Herd, finisher: Finisher, tenancy: Tenancy, payer: Payer, results: EmbeddedRedis, redis_url: str
) -> None:
    owe(herd, finisher, tenancy, "stored")
    results.stop()
    owe(herd, finisher, tenancy, "owed")
    with Client(redis_url) as client:
        for job_id in ("stored", "owed"):
            client.purge(job_id)
    assert num_owed(herd) == 2
    assert all(herd.redis.ttl(herd.ledger.job_key(job_id)) > 600_000 for job_id in ("stored", "owed"))
    results.start()
    with Redis.from_url(results.url) as others:
        assert others.exists("celery-task-meta-stored")
        payer.start()
        wait_until(lambda: num_owed(herd) == 0, "nothing is owed")
        assert not others.exists("celery-task-meta-stored", "celery-task-meta-owed")
    assert herd.redis.ttl(herd.ledger.job_key("owed")) <= Ledger().stream_ttl_s


def test_a_user_who_may_not_write_there_is_owed(
    herd: Herd, finisher: Finisher, tenancy: Tenancy, payer: Payer, results: EmbeddedRedis
) -> None:
    with Redis.from_url(results.url) as others:
        others.execute_command("ACL SETUSER default -@all +ping +get +acl")
        owe(herd, finisher, tenancy, "job")
        assert num_owed(herd) == 1
        others.execute_command("ACL SETUSER default +@all")
    payer.start()
    wait_until(lambda: num_owed(herd) == 0, "it is paid")
    assert tenancy.app.backend.get_state("job") == "SUCCESS"


def test_a_debt_whose_record_others_have_spoilt_ends(
    herd: Herd, finisher: Finisher, tenancy: Tenancy, payer: Payer
) -> None:
    for job_id, envelope in {"text": "no JSON", "list": "[1]", "body": '{"headers":{},"body":"%"}'}.items():
        ended(herd, job_id)
        herd.redis.hset(herd.ledger.job_key(job_id), "envelope", envelope)
        run_call(herd.redis, herd.ledger.owe(job_id, 0, has_sent_links=False))
    run_call(herd.redis, herd.ledger.owe("gone", 0, has_sent_links=False))
    payer.start()
    wait_until(lambda: num_owed(herd) == 0, "nothing is owed")
    states = {name: tenancy.app.backend.get_state(name) for name in ("text", "list", "body", "gone")}
    assert states == {"text": "SUCCESS", "list": "SUCCESS", "body": "SUCCESS", "gone": "FAILURE"}


@pytest.mark.parametrize("part", ["owed", "record"])
def test_what_cannot_be_owed_since_others_have_spoilt_a_key_ends_no_worker(
    herd: Herd, finisher: Finisher, tenancy: Tenancy, results: EmbeddedRedis, part: str
) -> None:
    ended(herd, "job")
    key = herd.ledger.key("owed") if part == "owed" else herd.ledger.job_key("job")
    kept = herd.redis.dump(key)
    herd.redis.delete(key)
    herd.redis.set(key, "somebody else's")
    results.stop()
    held = Held(tenancy.app, "job")
    with capture_logs() as lines:
        finisher.settle(tenancy, "job", [held])
        wait_until(lambda: any("cannot be owed" in line["event"] for line in lines), "it is told")
    assert not held.is_acked.is_set()
    herd.redis.delete(key)
    if kept is not None:
        herd.redis.restore(key, 0, kept)
    assert held.is_acked.wait(60), "the message stays for ever"
    assert num_owed(herd) == 1


def test_an_id_that_another_job_has_by_now_is_not_owed(herd: Herd, payer: Payer) -> None:
    herd.submit("job")
    run_call(herd.redis, herd.ledger.owe("job", 0, has_sent_links=False))
    payer.start()
    wait_until(lambda: num_owed(herd) == 0, "it is forgotten")
    assert herd.redis.hget(herd.ledger.job_key("job"), "settled") is None
    assert herd.redis.ttl(herd.ledger.job_key("job")) == -1


def test_who_is_asked_once_looks_once(payer: Payer, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[str]()

    class Asked(Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not self.is_set():
                payer.stop()
            return True

    def look(*_: object) -> bool:
        assert not looks, "it looks again, without a pause"
        looks.append("look")
        return False

    monkeypatch.setattr(payer, "_is_asked", Asked())
    monkeypatch.setattr(RESULT_SERVER, "look", look)
    payer.look_soon()
    payer.run()
    assert looks == ["look"]


def test_the_rights_that_the_docs_name_are_enough(
    herd: Herd, finisher: Finisher, results: EmbeddedRedis, redis: Redis, redis_url: str
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    (rules,) = re.findall(r"needs `(~\*celery-task.*?)`", page, re.S)
    with Redis.from_url(results.url) as others:
        others.execute_command(f"ACL SETUSER worker on >x resetkeys resetchannels -@all {rules}")
    own = results.url.replace("redis://", "redis://worker:x@")
    app = app_of_worker(redis_url, own)
    tenancy = new_tenancy(redis, Ledger(), app=app, redis_url=redis_url, result_url=own)
    app.backend.set_chord_size("g", 1)
    chord = {**links_to(app, "shop"), "chord": app.signature("shop.then", queue="bodies")}
    ended(herd, "job", chord)
    held = Held(app, "job", chord, group="g", group_index=0)
    finisher.settle(tenancy, "job", [held])
    assert held.is_acked.wait(60)
    assert num_owed(herd) == 0
    assert app.backend.get_state("job") == "SUCCESS"
    assert redis.llen("bodies") == 1


def test_nothing_is_owed_of_a_job_that_is_settled(herd: Herd, finisher: Finisher, tenancy: Tenancy) -> None:
    owe(herd, finisher, tenancy, "job")
    run_call(herd.redis, herd.ledger.owe("job", 0, has_sent_links=False))
    assert num_owed(herd) == 0


def test_who_owes_does_not_wait_and_a_task_of_others_does() -> None:
    server = ResultServer()
    server.is_away = True
    with server.owing(), pytest.raises(ResultsAway):
        server.check()
    with pytest.raises(Exception, match="its Redis is away"):  # the main thread takes messages
        server.check()


def test_a_redis_that_was_away_is_there_once_it_takes_a_result(redis: Redis) -> None:
    server = ResultServer()
    server.is_away = True
    assert not server.look(Redis(port=1), "")
    assert server.is_away
    assert server.look(redis, "")
    assert not server.is_away


def test_a_debt_has_the_links_of_its_message(app: Celery) -> None:
    held = Held(app, "job", links_to(app, "shop"))
    assert held._embed is not None
    assert held._embed["callbacks"][0]["task"] == "shop.next"
    assert app.tasks[TASK_NAME] is held._task


@pytest.mark.parametrize("task", ["herd.embed", "herd.rerank"])
def test_a_debt_is_paid_by_the_name_of_its_task(app: Celery, task: str) -> None:
    assert Held(app, "job", task=task)._task is app.tasks[task]
