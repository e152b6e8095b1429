"""Several helpers that do the same, so that nobody's heavy work holds up all others."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock
from typing import Generic, Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> None: ...


H = TypeVar("H", bound=_Closable)


class HelperPool(Generic[H]):
    """Lends each helper to one caller at a time; further callers are served as they came.

    Any thread may call. So a thread has one helper at most, and where there are fewer helpers than threads,
    each goes before the second call of another.
    """

    def __init__(self, helpers: Iterable[H]) -> None:
        """`helpers` start what they need when they are first used; the last one is used first."""
        self._lock = Lock()
        self._idle = list(helpers)
        self._waiting = deque[SimpleQueue[H]]()
        self._is_closed = False

    @contextmanager
    def lent(self) -> Iterator[H]:
        """A helper of one's own within the block."""
        helper = self._take()
        try:
            yield helper
        finally:
            self._give_back(helper)

    def close(self) -> None:
        """End the helpers, each as soon as it is idle."""
        with self._lock:
            self._is_closed = True
            for helper in self._idle:
                helper.close()

    def _take(self) -> H:
        """The one that was used last, so that no more are started than are needed."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            turn = SimpleQueue[H]()
            self._waiting.append(turn)
        return turn.get()

    def _give_back(self, helper: H) -> None:
        """Hand over to who waits longest: who gives back cannot take again before."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(helper)
                return
            self._idle.append(helper)
            if self._is_closed:
                helper.close()
