"""Whatever stands in the headers of a bare message: it ends in a final event or among the dead letters."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from redis import Redis

from llama_herd.errors import GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.request import MAX_AHEAD_DAYS
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until
from tests.tiny import write_tiny_gguf
from tests.worker.broker.test_hostile_messages import JOB, QUEUE, body_of, message

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def worker(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "m.gguf", eos=False, context_length=8192)
    worker = WorkerProcess(
        server.url, model, "w", folder / "log", held_by=folder, step_s=0.005, slots=1, remote_control=True
    )
    with worker:
        yield worker


@pytest.fixture
def redis(server: EmbeddedRedis, worker: WorkerProcess) -> Iterator[Redis]:
    with Redis.from_url(server.url) as redis:
        yield redis


@pytest.fixture
def client(server: EmbeddedRedis, worker: WorkerProcess) -> Iterator[Client]:
    with Client(server.url, model="m") as client:
        yield client


def push(redis: Redis, job: dict[str, Any], tag: str = "{}", **headers: Any) -> str:
    """Push a bare message with these headers; its id."""
    job_id = str(uuid4())
    raw = json.loads(message(body_of(json.dumps(job)), id=job_id, **headers))
    raw["properties"]["delivery_tag"] = tag.format(job_id)
    redis.lpush(QUEUE, json.dumps(raw))
    return job_id


def end_of(client: Client, job_id: str) -> End:
    *_, end = client.stream(job_id, timeout_s=PATIENCE_S)
    assert isinstance(end, End)
    return end


#: Its events are few, so that it costs little while others wait for it.
ENDLESS = {"prompt": "a tale", "sampling": {"max_tokens": 4096}, "flush_ms": 60_000}
PAST = ["0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00", "1970-01-01T00:00:00+00:00", "2020-01-01"]
FUTURE = ["9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59", "2999-01-01T00:00:00+00:00"]
NO_TIMES = ["", "soon", 5, 1e308, True, ["2020"], {}, "2020-01-01T25:00:00", "9999-12-31T24:00:00", "\ud800"]


@pytest.mark.parametrize("eta", PAST)
def test_a_job_whose_eta_is_past_is_run(eta: str, client: Client, redis: Redis) -> None:
    assert end_of(client, push(redis, JOB, eta=eta)).finish_reason == "length"


def test_a_job_whose_eta_is_far_waits_in_the_ledger_and_in_no_worker(client: Client, redis: Redis) -> None:
    eta = datetime.now(UTC) + timedelta(days=MAX_AHEAD_DAYS - 1)
    job_id = push(redis, JOB, eta=eta.isoformat())
    wait_until(lambda: redis.zscore(Ledger().key("delayed"), job_id), "it is on record")
    wait_until(lambda: not redis.hlen(Ledger().unacked_key), "no worker holds it")
    client.cancel(job_id)
    assert end_of(client, job_id).finish_reason == "cancelled"


def test_an_eta_that_is_a_minute_too_far_is_told_two_numbers_that_differ(
    client: Client, redis: Redis
) -> None:
    eta = datetime.now(UTC) + timedelta(days=MAX_AHEAD_DAYS, minutes=1)
    error = end_of(client, push(redis, JOB, eta=eta.isoformat())).error
    assert error is not None
    assert error.message == "eta: must be at most 3650 days ahead, got 3651. Fix: an earlier time"


@pytest.mark.parametrize("eta", FUTURE)
def test_an_eta_that_nobody_lives_to_see_is_a_failure_that_says_so(
    eta: str, client: Client, redis: Redis, server: EmbeddedRedis
) -> None:
    """The last moment that Python knows, and what it becomes elsewhere: a sum has overflown."""
    job_id = push(redis, JOB, eta=eta)
    end = end_of(client, job_id)
    assert end.error is not None
    assert (end.error.code, end.error.retriable) == ("invalid_job", False)
    assert re.match(r"eta: must be at most 3650 days ahead, got [0-9]{6,7}\.", end.error.message)
    shop = Celery(broker=server.url, backend=server.url, set_as_current=False)
    with pytest.raises(GenerationError, match="3650 days"):
        shop.AsyncResult(job_id).get(timeout=PATIENCE_S)


@pytest.mark.parametrize("header", ["eta", "expires"])
@pytest.mark.parametrize("value", NO_TIMES)
def test_a_header_that_is_no_time_is_named_in_the_job_s_end(
    header: str, value: Any, client: Client, redis: Redis
) -> None:
    end = end_of(client, push(redis, JOB, **{header: value}))
    assert end.error is not None
    assert end.error.code == "invalid_job"
    assert end.error.message.startswith(f"{header}: must be")


@pytest.mark.parametrize("expires", PAST)
def test_a_job_that_expired_long_ago_has_its_end(expires: str, client: Client, redis: Redis) -> None:
    assert end_of(client, push(redis, JOB, expires=expires)).finish_reason == "deadline"


@pytest.mark.parametrize("expires", FUTURE)
def test_a_job_that_expires_in_a_thousand_years_is_run(expires: str, client: Client, redis: Redis) -> None:
    assert end_of(client, push(redis, JOB, expires=expires)).finish_reason == "length"


@pytest.mark.parametrize("tag", ["{}:", "{}:1", "{}:1:x", "{}:mine", "{}::", "{}:1:-5", "{}:1:2:3"])
def test_a_message_that_asks_for_nothing_is_told_so_whatever_its_tag_begins_with(
    tag: str, client: Client, redis: Redis
) -> None:
    end = end_of(client, push(redis, {}, tag))
    assert end.error is not None
    assert "prompt" in end.error.message


def test_a_message_of_ours_whose_record_is_forgotten_is_acked_and_leaves_no_record(
    client: Client, worker: WorkerProcess, redis: Redis
) -> None:
    job_id = push(redis, {}, "{}:1:1700000000000")
    wait_until(lambda: job_id in worker.log, "it is seen")
    wait_until(lambda: not redis.hlen(Ledger().unacked_key), "it is acked")
    assert not redis.exists(Ledger().job_key(job_id))


def ended_in_time(client: Client, redis: Redis, limit_s: float) -> list[Result]:
    """Jobs with this limit; all but the first wait for others, longer than they may take themselves."""
    limits = [[limit_s, None], [None, limit_s], [600, limit_s], [limit_s, 600]]
    job_ids = [push(redis, ENDLESS, timelimit=pair) for pair in (limits[-1], *limits)]
    assert [end_of(client, job_id).finish_reason for job_id in job_ids] == ["deadline"] * len(job_ids)
    return [client.result(job_id) for job_id in job_ids]


def test_a_time_limit_counts_from_the_start_and_keeps_what_there_is(client: Client, redis: Redis) -> None:
    """A busy machine may need longer to the first token."""
    tries = (ended_in_time(client, redis, limit_s) for limit_s in (0.5, 2.0, 8.0))
    results = next(found for found in tries if all(result.text for result in found))
    assert all(result.timings is not None for result in results)


@pytest.mark.parametrize("limits_s", [None, [None, None], [0, 0], [60, 60]])
def test_a_job_within_its_time_limit_is_run(limits_s: Any, client: Client, redis: Redis) -> None:
    assert end_of(client, push(redis, JOB, timelimit=limits_s)).finish_reason == "length"


@pytest.mark.parametrize("limits_s", ["", 5, [1], [1, 2, 3], ["1", None], [-1, None], [1e999, 1], [{}, []]])
def test_a_time_limit_that_is_none_is_named_in_the_job_s_end(
    limits_s: Any, client: Client, redis: Redis
) -> None:
    end = end_of(client, push(redis, JOB, timelimit=limits_s))
    assert end.error is not None
    assert end.error.message.startswith("timelimit: must be two numbers of seconds")


def test_a_time_limit_of_all_jobs_is_set_by_remote_control(
    client: Client, redis: Redis, server: EmbeddedRedis
) -> None:
    control = make_app(Settings(redis_url=server.url)).control
    control.time_limit(TASK_NAME, soft=0.5, reply=True, timeout=PATIENCE_S, limit=1)
    try:
        assert end_of(client, push(redis, ENDLESS)).finish_reason == "deadline"
    finally:
        control.time_limit(TASK_NAME, reply=True, timeout=PATIENCE_S, limit=1)


def test_a_countdown_is_kept_to_by_the_ledger(client: Client, redis: Redis, server: EmbeddedRedis) -> None:
    app: Celery = make_app(Settings(redis_url=server.url))
    due = datetime.now(UTC) + timedelta(seconds=2)
    sent = app.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, countdown=2)
    assert end_of(client, sent.id).finish_reason == "length"
    assert datetime.now(UTC) >= due
    assert sent.get(timeout=PATIENCE_S)["finish_reason"] == "length"
    assert run_call(redis, Ledger().num_pending()) == 0
