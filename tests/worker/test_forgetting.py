"""What a real worker leaves behind in Redis: nothing after a purge, and nothing after a job's time."""

from collections.abc import Iterator

import pytest
from celery import Celery
from celery.result import AsyncResult
from redis import Redis

from llama_herd.errors import GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.message import TASK_NAME, Envelope, queue_name
from llama_herd.tasks.settings import Settings
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until
from tests.tasks.client.test_purge import values
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

CANARY = "canary of the prompt"

#: How long a job is kept, longer than a busy machine may hold a test up; what Redis says when that is over.
TTL_S, GONE = 12, -2
FIELDS = {"prompt": CANARY, "sampling": {"max_tokens": 8, "seed": 3}}


@pytest.fixture(scope="module", autouse=True)
def _worker(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "m.gguf", eos=False)
    with WorkerProcess(
        server.url, model, "w", folder / "log", slots=4, stream_ttl_s=TTL_S, result_ttl_s=TTL_S
    ) as worker:
        yield worker


@pytest.fixture
def redis(server: EmbeddedRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url) as redis:
        yield redis


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Client]:
    with Client(server.url, model="m") as client:
        yield client


@pytest.fixture
def celery_app(server: EmbeddedRedis) -> Celery:
    return make_app(Settings(redis_url=server.url))


def run_both_ways(client: Client, celery_app: Celery, redis: Redis) -> list[str]:
    """A job of our client and a bare one, both ended, stored and acknowledged."""
    bare = celery_app.send_task(TASK_NAME, kwargs=FIELDS, queue=queue_name("m"))
    job_ids = [client.submit(**FIELDS), str(bare.id)]  # type: ignore[arg-type]
    for job_id in job_ids:
        assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "length"
    wait_until(lambda: not redis.exists(Keys().unacked_key), "acknowledgement")
    return job_ids


def holders(redis: Redis, *job_ids: str) -> set[bytes]:
    """Every key that holds the prompt, or an id's result."""
    found = {
        key for key in redis.scan_iter() if any(CANARY.encode() in value for value in values(redis, key))
    }
    results = {Keys().result_key(job_id).encode() for job_id in job_ids}
    return found | {key for key in results if redis.exists(key)}


def test_after_a_purge_nothing_is_left(client: Client, celery_app: Celery, redis: Redis) -> None:
    job_ids = run_both_ways(client, celery_app, redis)
    assert len(holders(redis, *job_ids)) == 4  # two records, two results
    for job_id in job_ids:
        client.purge(job_id)
        assert not redis.exists(Keys().events_key(job_id))
    assert holders(redis, *job_ids) == set()


def test_after_its_time_nothing_is_left(client: Client, celery_app: Celery, redis: Redis) -> None:
    job_ids = run_both_ways(client, celery_app, redis)
    for job_id in job_ids:
        for key in (Keys().job_key(job_id), Keys().events_key(job_id), Keys().result_key(job_id)):
            assert redis.ttl(key) in {GONE, *range(TTL_S + 1)}
    wait_until(lambda: not holders(redis, *job_ids), "end of retention")
    assert not any(redis.exists(Keys().events_key(job_id)) for job_id in job_ids)


def test_a_message_that_comes_after_its_jobs_time_tells_celery_that_it_is_forgotten(
    client: Client, celery_app: Celery, redis: Redis
) -> None:
    """As of a job that was cancelled in a long queue. One of which Celery knows the end keeps that."""
    known = run_both_ways(client, celery_app, redis)[0]
    redis.delete(Keys().job_key(known), Keys().events_key(known))
    for job_id in (known, "cancelled"):
        message = Envelope.for_job(job_id, queue_name("m")).with_tag(f"{job_id}:1:0")
        redis.lpush(queue_name("m"), message)
    with pytest.raises(GenerationError, match="no longer kept") as failure:
        AsyncResult("cancelled", app=celery_app).get(timeout=PATIENCE_S)
    assert failure.value.code == "forgotten"
    assert AsyncResult(known, app=celery_app).state == "SUCCESS"
    wait_until(lambda: not redis.exists(Keys().unacked_key), "acknowledgement")


def test_a_delayed_job_runs_when_it_is_due_and_no_sooner(client: Client, redis: Redis) -> None:
    seconds, _ = redis.time()
    due_ms = 1000 * (seconds + 2)
    job_id = client.submit(not_before=due_ms, **FIELDS)  # type: ignore[arg-type]
    result = client.result(job_id, timeout_s=PATIENCE_S)
    now_s, _ = redis.time()
    assert now_s * 1000 >= due_ms
    assert result.finish_reason == "length"
    assert result.timings is not None
    assert result.timings.total_s is not None
    assert due_ms / 1000 + result.timings.total_s < now_s + 2
