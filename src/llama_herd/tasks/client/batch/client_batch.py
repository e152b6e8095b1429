"""Many jobs, with a limited number under way at a time, and one item for each: in threads and in asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence, Sized
from functools import cached_property
from time import monotonic, sleep
from typing import Any

from llama_herd.tasks.client.arguments import checked_count
from llama_herd.tasks.client.batch.batch_progress import BatchProgress, DoneRows
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchJob
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.ledger.redis_call import Dialogue
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.given import refusal

#: How often a caller is told how its batch stands, at most.
TELL_S = 0.5

#: What a caller wants to be told by.
ProgressHook = Callable[[BatchStatus], object]


class ProgressTeller:
    """Tells a caller how its batch stands: now and then while jobs end, and once when all is over."""

    def __init__(
        self, hook: ProgressHook | None, window: BatchWindow, jobs: Iterable[BatchJob], total: int | None
    ) -> None:
        """total: the number of jobs; None: that of a list, and else unknown. Raises BadInput."""
        if hook is not None and not callable(hook):
            raise refusal("on_progress", hook, "a function that takes a BatchStatus")
        if total is not None:
            total = checked_count("total", total)
        elif isinstance(jobs, Sized):
            total = len(jobs)
        self._hook = hook
        self._window = window
        self._progress = BatchProgress(window.run_id, "", total, DoneRows())
        self._tell_at_s = 0.0

    def tell(self, items: Sequence[BatchItem]) -> None:
        """Count the items of a round, and tell if it is time. Raises what the hook raises."""
        if self._hook is None:
            return
        self._progress.count(items)
        is_over = self._window.is_over
        if is_over or monotonic() >= self._tell_at_s:
            self._tell_at_s = monotonic() + TELL_S
            state = "running" if not is_over else "cancelled" if self._window.is_cancelled else "done"
            self._hook(self._progress.status(state, self._window.num_under_way))


class ClientBatch:
    """The items of a batch, as its jobs end or in order. Made by `Client.batch`.

    Asking for the next item deletes the jobs of those before it from Redis. After RedisUnavailable nothing is
    lost: ask again.
    """

    def __init__(
        self, run: Callable[[Dialogue[Any]], Any], window: BatchWindow, teller: ProgressTeller
    ) -> None:
        """run: runs a dialogue, and raises RedisUnavailable."""
        self.window = window
        self._teller = teller
        self._run = run
        self._items: deque[BatchItem] = deque()

    def poll(self, *, forgets: bool = True) -> list[BatchItem]:
        """Pause shortly, run one round, and return its items; often none. Raises RedisUnavailable.

        forgets: whether the items of earlier rounds are safe, so that Redis may forget their jobs.
        """
        sleep(self.window.pause_s)
        items: list[BatchItem] = self._run(self.window.round(monotonic(), forgets=forgets))
        return items

    def cancel(self) -> None:
        """End all jobs under way; their items say so. Any thread may call it.

        Raises RedisUnavailable; then the next rounds end them.
        """
        self._run(self.window.cancel())

    def __iter__(self) -> Iterator[BatchItem]:
        return self

    def __next__(self) -> BatchItem:
        while not self._items:
            if self.window.is_over:
                raise StopIteration
            items = self.poll()
            self._items.extend(items)
            self._teller.tell(items)
        return self._items.popleft()


class AsyncBatch:
    """The items of a batch, without blocking the event loop. Made by `AsyncClient.batch`."""

    def __init__(
        self, connect: Callable[[], SharedConnections], window: BatchWindow, teller: ProgressTeller
    ) -> None:
        """connect: asked once, by the first call. Later its client may be closed, and have others."""
        self.window = window
        self._teller = teller
        self._connect = connect
        self._items: deque[BatchItem] = deque()

    async def poll(self) -> list[BatchItem]:
        """Pause shortly, run one round, and return its items; often none."""
        await asyncio.sleep(self.window.pause_s)
        return await self._connections.run(self.window.round(monotonic()))

    async def cancel(self) -> None:
        """End all jobs under way. Any task may call it."""
        await self._connections.run(self.window.cancel())

    @cached_property
    def _connections(self) -> SharedConnections:
        return self._connect()

    def __aiter__(self) -> AsyncIterator[BatchItem]:
        return self

    async def __anext__(self) -> BatchItem:
        while not self._items:
            if self.window.is_over:
                raise StopAsyncIteration
            items = await self.poll()
            self._items.extend(items)
            self._teller.tell(items)
        return self._items.popleft()
