"""Items of a batch in the order of its rows."""

from collections import deque
from collections.abc import Iterable

from llama_herd.tasks.client.batch.batch_row import BatchItem


class InOrder:
    """Holds items back until all items before them have come."""

    def __init__(self) -> None:
        self._expected: deque[int] = deque()
        self._held: dict[int, BatchItem] = {}

    def __len__(self) -> int:
        """Number of rows whose items have not been handed out yet."""
        return len(self._expected)

    def expect(self, index: int) -> None:
        self._expected.append(index)

    def sort(self, items: Iterable[BatchItem]) -> list[BatchItem]:
        """Add items, and return those whose turn it is."""
        self._held |= {item.index: item for item in items}
        ready = []
        while self._expected and self._expected[0] in self._held:
            ready.append(self._held.pop(self._expected.popleft()))
        return ready
