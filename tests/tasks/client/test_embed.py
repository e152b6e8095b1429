"""A call that waits for vectors ends with its jobs, whatever becomes of these or of the call."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from benchmarks.stand_in import StandIn
from llama_herd.errors import JobNotFound, QueueFull
from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.client.embedding import TextCall
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from tests.chaos.harness.patience import PATIENCE_S

pytestmark = pytest.mark.redis

#: Of two jobs: the first has as many as a job may have.
TEXTS = ["a llama"] * (MAX_TEXTS + 1)


@pytest.mark.parametrize("timeout_s", [None, 3600.0])
def test_a_job_that_somebody_purges_is_not_waited_for(
    redis_url: str, redis: Redis, timeout_s: float | None
) -> None:
    def second_job() -> str:
        waiting: Any = redis.zrange("herd:default:pending", 0, -1)
        ids: list[str] = [name.decode() for name in waiting]
        return min(ids, key=lambda one: len(run_call(redis, Ledger().body(one)) or b""))

    async def scene() -> None:
        async with AsyncClient(redis_url) as client:
            asked = asyncio.create_task(client.embed(TEXTS, model="tales", timeout_s=timeout_s))
            while await client.count_jobs() < 2:
                await asyncio.sleep(0.01)
            await client.purge(second_job())
            with StandIn(redis_url), pytest.raises(JobNotFound):
                await asyncio.wait_for(asked, PATIENCE_S)

    asyncio.run(scene())


def test_a_call_that_is_cancelled_before_it_hears_of_its_jobs_leaves_none(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with AsyncClient(redis_url) as client:
            connections, is_accepted = client._readers().connections, asyncio.Event()
            run = connections.run

            async def run_without_answer(dialogue: Awaitable[Any]) -> Any:
                await run(dialogue)
                is_accepted.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(connections, "run", run_without_answer)
                asked = asyncio.create_task(client.embed(TEXTS, model="tales"))
                await is_accepted.wait()
            assert await client.count_jobs() == 2
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert await client.count_jobs() == 0

    asyncio.run(scene())


def test_what_has_ended_a_call_is_told_though_redis_is_away_by_then(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: TextCall, __: Ledger) -> None:
        raise ConnectionError

    async def scene() -> None:
        async with AsyncClient(redis_url, max_queue=1) as client:
            with pytest.raises(QueueFull):
                await client.embed(TEXTS, model="tales")

    monkeypatch.setattr(TextCall, "cancel", refused)
    with Client(redis_url, max_queue=1) as client, pytest.raises(QueueFull):
        client.embed(TEXTS, model="tales")
    asyncio.run(scene())
