"""What an AsyncClient has under way is cancelled wherever it waits: it ends, and leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterator
from itertools import count
from typing import Any

import pytest
from redis import Redis

from llama_herd.errors import QueueFull
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import AsyncClient
from llama_herd.tasks.client import shared_connections
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from tests.chaos.harness.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.redis

#: Of two jobs: the first has as many as a job may have.
TEXTS = ["a llama"] * (MAX_TEXTS + 1)


class CancelledAt:
    """A coroutine whose task is cancelled when it waits for the `number`-th time.

    is_late: once what it waits for has come, but before it goes on.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, *, is_late: bool) -> None:
        self._work, self._number, self._is_late = work, number, is_late
        self.is_cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        error: BaseException | None = None
        for number in count(1):
            try:
                future = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            if number == self._number:
                self._cancel(future)
            error = None
            try:
                yield future
            except BaseException as found:
                error = found

    def _cancel(self, future: "asyncio.Future[Any] | None") -> None:
        self.is_cancelled = True
        task = asyncio.current_task()
        assert task is not None
        if self._is_late and future is not None:
            future.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


async def all_of(items: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in items]


async def refused(client: AsyncClient) -> None:
    with pytest.raises(QueueFull):
        await client.embed(TEXTS, model="tales")


async def visited(client: AsyncClient) -> None:
    async with client:
        await client.submit(prompt="x", job_id="a")


#: By name: what is called of a client with a queue of one job.
CALLS: dict[str, Callable[[AsyncClient], Coroutine[Any, Any, Any]]] = {
    "submit": lambda client: client.submit(prompt="x", job_id="a"),
    "submit_many": lambda client: all_of(client.submit_many([{"prompt": "x", "job_id": "a"}])),
    "jobs": lambda client: client.jobs(),
    "embed": refused,
    "close": visited,
}


@pytest.fixture(scope="module")
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis that no other test uses."""
    with EmbeddedRedis() as server:
        yield server


@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_cancelled_ends_and_leaves_nothing(
    own_redis: EmbeddedRedis, name: str, is_late: bool, is_connected: bool
) -> None:
    async def scene(number: int) -> bool:
        client = AsyncClient(own_redis.url, model="tales", max_queue=1)
        if is_connected:
            await client.workers()
        work = CancelledAt(CALLS[name](client), number, is_late=is_late)
        outcome = await asyncio.gather(asyncio.wait_for(work, PATIENCE_S), return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError) == work.is_cancelled, (number, outcome)
        await client.cancel("a")
        assert await client.count_jobs() == 0, number
        await client.close()
        wait_until(lambda: len(redis.client_list()) == 1, f"no connection is left at {number}")
        return work.is_cancelled

    with Redis.from_url(own_redis.url) as redis:
        for number in count(1):
            redis.flushall()
            if not asyncio.run(scene(number)):
                break


@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("name", ["submit", "submit_many", "jobs"])
def test_a_task_that_is_cancelled_while_it_runs_ends_at_its_next_call(
    own_redis: EmbeddedRedis, name: str, is_connected: bool
) -> None:
    """As by Ctrl-C: asyncio.run cancels its task in the handler of the signal, between any two steps."""

    async def interrupted(client: AsyncClient) -> None:
        if is_connected:
            await client.workers()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await CALLS[name](client)

    async def scene() -> None:
        async with AsyncClient(own_redis.url, model="tales") as client:
            work = asyncio.create_task(interrupted(client))
            await asyncio.wait([work], timeout=PATIENCE_S)
            assert work.cancelled()
            assert await client.count_jobs() == 0

    with Redis.from_url(own_redis.url) as redis:
        redis.flushall()
    asyncio.run(scene())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_subscription_ends_by_one_cancel(
    own_redis: EmbeddedRedis, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio.run cancels once, and waits: a program that closes no client would stand there for 10 s."""
    for pause in ("PING_S", "IDLE_S", "RETRY_S"):
        monkeypatch.setattr(shared_connections, pause, 0.01)

    async def scene(number: int) -> bool:
        hub = SharedConnections(own_redis.url).hub
        work = CancelledAt(hub._run(), number, is_late=is_late)
        outcome = await asyncio.gather(asyncio.wait_for(work, PATIENCE_S), return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError) == work.is_cancelled, (number, outcome)
        wait_until(lambda: len(redis.client_list()) == 1, f"no connection is left at {number}")
        return work.is_cancelled

    with Redis.from_url(own_redis.url) as redis:
        for number in count(1):
            if not asyncio.run(scene(number)):
                break
