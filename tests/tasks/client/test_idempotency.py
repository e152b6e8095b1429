"""Idempotency keys: one job for each, however often and from however many threads it is submitted."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from redis import Redis

from llama_herd.errors import BadInput, InvalidJob, JobConflict
from llama_herd.tasks import AsyncClient, Client, ledger
from llama_herd.tasks.protocol.job import ROW_PREFIX
from tests.tasks.herd import QUEUE, Herd, end, started

pytestmark = pytest.mark.redis

NUM_PARALLEL = 50
LUA = Path(ledger.__file__).parent / "lua"


def test_fifty_submits_at_once_make_one_job(client: Client, redis: Redis) -> None:
    barrier = Barrier(NUM_PARALLEL)

    def submit(_: int) -> str:
        barrier.wait()
        return client.submit(prompt="x", idempotency_key="order-17")

    with ThreadPoolExecutor(NUM_PARALLEL) as threads:
        job_ids = set(threads.map(submit, range(NUM_PARALLEL)))
    assert len(job_ids) == 1
    assert redis.llen(QUEUE) == 1
    assert redis.zrange("herd:default:pending", 0, -1) == [job_ids.pop().encode()]


def test_both_clients_make_the_same_id_of_a_key(client: Client, redis_url: str) -> None:
    async def submit() -> str:
        async with AsyncClient(redis_url) as twin:
            return await twin.submit(prompt="x", idempotency_key="order-17")

    assert asyncio.run(submit()) == client.submit(prompt="x", idempotency_key="order-17")


def test_another_job_under_the_same_key_is_a_conflict_and_changes_nothing(client: Client, herd: Herd) -> None:
    job_id = client.submit(prompt="x", idempotency_key="order-17")
    before = herd.redis.hgetall(herd.ledger.job_key(job_id))
    with pytest.raises(JobConflict, match="idempotency_key: another job already has it") as caught:
        client.submit(prompt="a canary", idempotency_key="order-17")
    assert isinstance(caught.value, BadInput)
    assert "canary" not in str(caught.value)
    assert herd.redis.hgetall(herd.ledger.job_key(job_id)) == before
    assert herd.redis.llen(QUEUE) == 1


def test_another_key_or_another_tenant_is_another_job(client: Client, redis_url: str) -> None:
    with Client(redis_url, tenant="acme") as other:
        ids = {
            client.submit(prompt="x", idempotency_key="order-17"),
            client.submit(prompt="x", idempotency_key="order-18"),
            other.submit(prompt="x", idempotency_key="order-17"),
        }
    assert len(ids) == 3


def test_a_key_holds_as_long_as_the_record(client: Client, herd: Herd) -> None:
    job_id = client.submit(prompt="x", idempotency_key="order-17")
    herd.claim(job_id)
    herd.emit("one", started(job_id), end(job_id, 2, 0))
    assert client.submit(prompt="x", idempotency_key="order-17") == job_id
    assert client.result(job_id).finish_reason == "stop"
    herd.redis.delete(herd.ledger.job_key(job_id), herd.ledger.events_key(job_id))
    assert client.submit(prompt="y", idempotency_key="order-17") == job_id
    assert herd.field(job_id, "state") == "queued"


def test_a_key_that_cannot_be_one_is_refused_without_being_repeated(client: Client) -> None:
    with pytest.raises(InvalidJob, match="idempotency_key: must be 1 to 255 characters long, got 256"):
        client.submit(prompt="x", idempotency_key="k" * 256)
    with pytest.raises(InvalidJob, match="got 0"):
        client.submit(prompt="x", idempotency_key="")
    with pytest.raises(TypeError, match="not both"):
        client.submit(prompt="x", idempotency_key="k", job_id="a")


def test_an_id_whose_end_no_webhook_tells_is_refused_beside_one(client: Client, redis: Redis) -> None:
    script = (LUA / "batch_row.lua").read_text()
    assert f"string.sub(id, 1, {len(ROW_PREFIX)}) == '{ROW_PREFIX}'" in script
    hook = "https://app.example.com/hook"
    with pytest.raises(InvalidJob, match="job_id: an id that begins with batch- is that of a batch's row"):
        client.submit(prompt="x", job_id=f"{ROW_PREFIX}7", webhook=hook)
    assert redis.dbsize() == 0
    assert client.submit(prompt="x", job_id=f"{ROW_PREFIX}7") == f"{ROW_PREFIX}7"
    assert client.submit(prompt="x", job_id="7", webhook=hook) == "7"
