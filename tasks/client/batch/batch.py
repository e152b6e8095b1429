"""Many jobs through a bounded window, one item a job."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from time import monotonic, sleep
from typing import Any, TypeVar

import redis

from llama_herd.tasks.client.batch.row import BatchItem
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.connection import redis_errors
from llama_herd.tasks.ledger.redis_call import Call, run_many

T = TypeVar("T")


class Batch:
    """The items of a batch as its jobs end, or in order. Made by `Client.batch`.

    Who asks for the next item has done with those before it: Redis forgets them then. RedisUnavailable loses
    nothing: ask again.
    """

    def __init__(self, connection: redis.Redis, url: str, window: BatchWindow) -> None:
        self.window = window
        self._connection = connection
        self._url = url
        self._items: deque[BatchItem] = deque()

    def poll(self) -> list[BatchItem]:
        """All items of one look, after a short pause; often none. Raises RedisUnavailable."""
        sleep(self.window.pause_s)
        with redis_errors(self._url):
            return self._exchange(self.window.round(monotonic()))

    def cancel(self) -> None:
        """End all that is under way; the items say so. Raises RedisUnavailable."""
        with redis_errors(self._url):
            self._exchange(self.window.cancel())

    def __iter__(self) -> Iterator[BatchItem]:
        return self

    def __next__(self) -> BatchItem:
        while not self._items:
            if self.window.is_over:
                raise StopIteration
            self._items.extend(self.poll())
        return self._items.popleft()

    def _exchange(self, dialogue: Generator[Sequence[Call[Any]], list[Any], T]) -> T:
        try:
            calls = next(dialogue)
            while True:
                calls = dialogue.send(run_many(self._connection, calls))
        except StopIteration as end:
            outcome: T = end.value
            return outcome
