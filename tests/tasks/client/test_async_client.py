"""The asyncio client does as the other one."""

import asyncio

import pytest

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks import AsyncClient
from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.ledger.answers import Cancellation
from llama_herd.tasks.protocol.events import Event
from tests.chaos.harness.patience import PATIENCE_S
from tests.tasks.client.playing_worker import NUM_TOKENS, PlayingWorker
from tests.tasks.herd import Herd, end, started

pytestmark = pytest.mark.redis


def test_the_asyncio_client_does_the_same(redis_url: str, herd: Herd) -> None:
    async def talk() -> None:
        async with AsyncClient(redis_url) as client:
            job_id = await client.submit(prompt="x")
            with pytest.raises(TimeoutError):
                await client.result(job_id, timeout_s=0.05)
            with pytest.raises(TimeoutError):
                await client.result(job_id, timeout=0.05)
            with pytest.raises(TimeoutError):
                [event async for event in client.watch(job_id, timeout=0.05)]
            worker = PlayingWorker(herd, job_id, pause_at=20)
            readers = [asyncio.create_task(collect(client, job_id)) for _ in range(3)]
            worker.start()
            await asyncio.to_thread(worker.has_paused.wait, PATIENCE_S)
            readers.append(asyncio.create_task(collect(client, job_id)))
            assert (await client.status()).running == 1
            worker.may_go_on.set()
            lists = await asyncio.gather(*readers)
            assert [event.seq for event in lists[0]] == list(range(1, NUM_TOKENS + 3))
            assert all(events == lists[0] for events in lists)
            assert (await client.result(job_id)).finish_reason == "stop"
            assert await client.cancel(job_id) is Cancellation.FINISHED
            assert await client.workers() == []

    async def collect(client: AsyncClient, job_id: str) -> list[Event]:
        return [event async for event in client.stream(job_id, timeout_s=PATIENCE_S)]

    asyncio.run(talk())


@pytest.mark.long
def test_the_asyncio_client_watches_too(redis_url: str, herd: Herd) -> None:
    herd.submit("a")

    async def scene() -> None:
        async with AsyncClient(redis_url) as client:
            watching = client.watch("a")
            assert await anext(watching) == Queued(position=1, estimated_wait_s=None)
            herd.claimed("a")
            herd.emit("one", started("a"), end("a", 2, 0))
            assert [event async for event in watching] == herd.events("a")

    asyncio.run(scene())


@pytest.mark.long
def test_the_asyncio_client_says_when_redis_is_not_there() -> None:
    async def talk() -> None:
        async with AsyncClient("redis://127.0.0.1:1/0") as client:
            with pytest.raises(RedisUnavailable, match="Fix"):
                await client.submit(prompt="x")
            with pytest.raises(RedisUnavailable, match="Fix"):
                await client.result("a")

    asyncio.run(talk())
