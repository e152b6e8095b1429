"""A real worker keeps record, stream and result as long as the job asks for, and counts their bytes."""

from collections.abc import Iterator

import pytest
from celery import Celery
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker]

MAX_MEMORY = 64 << 20
DAY_S = 86_400
FIELDS = {"prompt": "Once upon a time", "sampling": {"max_tokens": 3, "ignore_eos": True}}


@pytest.fixture(scope="module")
def redis(server: EmbeddedRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url) as redis:
        redis.config_set("maxmemory", MAX_MEMORY)
        yield redis


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis, redis: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("worker")
    model = write_tiny_gguf(folder / "kept.gguf")
    with WorkerProcess(server.url, model, "w", folder / "log", held_by=folder) as worker:
        yield worker


@pytest.mark.parametrize(
    ("fields", "record_s", "result_s"),
    [
        ({}, 3600, DAY_S),
        ({"keep_s": 500}, 500, 500),
        ({"keep_s": 9 * DAY_S}, 9 * DAY_S, 9 * DAY_S),
        (
            {
                "keep_s": 500,
                "chat_template": "no-such",
                "prompt": None,
                "messages": [{"role": "user", "content": "x"}],
            },
            DAY_S,
            DAY_S,
        ),
    ],
    ids=["as all", "shorter", "longer", "failed"],
)
def test_record_stream_and_result_live_alike(
    worker: WorkerProcess,
    server: EmbeddedRedis,
    redis: Redis,
    fields: dict[str, object],
    record_s: int,
    result_s: int,
) -> None:
    app = Celery(broker=server.url, backend=server.url, set_as_current=False)
    sent = app.send_task(TASK_NAME, kwargs=FIELDS | fields, queue=queue_name("kept"))
    ledger = Ledger()
    sent.get(timeout=PATIENCE_S, propagate=False)
    assert sent.successful() is (record_s != DAY_S)
    wait_until(lambda: redis.hget(ledger.job_key(sent.id), "settled"), "the result is noted")
    lives = [redis.ttl(key(sent.id)) for key in (ledger.job_key, ledger.events_key, ledger.result_key)]
    for left, wanted in zip(lives, (record_s, record_s, result_s), strict=True):
        assert wanted - 60 <= left <= wanted


def test_all_that_is_kept_is_counted_and_the_limit_is_told(
    worker: WorkerProcess, server: EmbeddedRedis, redis: Redis
) -> None:
    with Client(server.url, model="kept") as client:
        wait_until(
            lambda: client.status().kept_limit_bytes == MAX_MEMORY // 2, "the worker has told the limit"
        )
        keys = [key for name in ("*:job", "*:events", "celery-task-meta-*") for key in redis.scan_iter(name)]
        whole = sum(redis.memory_usage(key, samples=0) or 0 for key in keys)
        assert client.status().kept_bytes == pytest.approx(whole, rel=0.05)
        assert client.purge_ended() > 0
        assert client.status().kept_bytes == 0
        redis.config_set("maxmemory", 0)
        wait_until(lambda: client.status().kept_limit_bytes == 0, "there is no limit any more")
