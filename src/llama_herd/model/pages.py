"""Pages: which sequence holds which piece of the KV cache."""

from bisect import insort
from collections import Counter
from collections.abc import Container, Hashable, Sequence
from itertools import accumulate
from operator import attrgetter

#: Tokens whose keys and values one page holds, in every layer.
PAGE_TOKENS = 64


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class Pages:
    """The ledger of a cache's pages: plain arithmetic, no tensor.

        pages = Pages(8, consecutive=True)
        pages.reserve("a", 100)  # (0, 1)
        pages.release("a")

    With `consecutive` an owner gets neighbours, so that its keys are one plain view of the storage (CPU);
    without, its pages lie anywhere and are read through a table (GPU). A page may have several holders,
    and is free when the last one lets go.
    """

    def __init__(self, num_pages: int, *, consecutive: bool) -> None:
        self.num_pages = num_pages
        self.consecutive = consecutive
        self._free = [range(num_pages)] if num_pages else []  # runs in order, no two touch
        self._held: dict[Hashable, tuple[int, ...]] = {}
        self._num_holders: Counter[int] = Counter()  # owners, and one for each `keep`
        self._num_owners: Counter[int] = Counter()

    @property
    def num_free(self) -> int:
        return sum(len(run) for run in self._free)

    @property
    def num_held(self) -> int:
        """Pages that some owner holds; others in use are only kept."""
        return len(self._num_owners)

    def reserve(self, owner: Hashable, num_tokens: int, shared: Sequence[int] = ()) -> tuple[int, ...] | None:
        """Give `owner` the pages for `num_tokens` tokens at once, or None when there is no room now.

        `shared` are pages in use that become its first ones.
        """
        assert owner not in self._held, f"{owner} holds pages already"
        assert num_tokens > 0, f"{owner} asks for {num_tokens} tokens"
        assert not (shared and self.consecutive), "a page has one place, it cannot be a neighbour twice"
        num_pages = pages_for(num_tokens) - len(shared)
        pages = self._take_run(num_pages) if self.consecutive else self._take_any(num_pages)
        if pages is None:
            return None
        self._held[owner] = (*shared, *pages)
        self._num_holders.update(self._held[owner])
        self._num_owners.update(self._held[owner])
        return self._held[owner]

    def release(self, owner: Hashable) -> None:
        """Take back all pages of `owner`."""
        pages = self._held.pop(owner)
        for page in pages:
            _count_down(self._num_owners, page)
        self._let_go(pages)

    def keep(self, page: int) -> None:
        """Hold a page that is in use, whatever becomes of its owners."""
        assert self._num_holders[page], f"page {page} is free"
        self._num_holders[page] += 1

    def drop(self, page: int) -> None:
        """Take back one `keep` of a page."""
        self._let_go((page,))

    def is_shared(self, page: int) -> bool:
        """Whether a page has more than one holder."""
        return self._num_holders[page] > 1

    def cheapest_run(self, num_pages: int, removable: Container[int]) -> range | None:
        """The run of so many pages that is free but for the fewest `removable` ones; None: there is none."""
        costs = [len(self._num_holders) + 1] * self.num_pages  # one that cannot be had costs most
        for page in range(self.num_pages):
            if not self._num_holders[page]:
                costs[page] = 0
            elif page in removable:
                costs[page] = 1
        sums = [0, *accumulate(costs)]
        runs = [range(start, start + num_pages) for start in range(self.num_pages - num_pages + 1)]
        best = min(runs, key=lambda run: sums[run.stop] - sums[run.start], default=None)
        if best is None or sums[best.stop] - sums[best.start] > len(self._num_holders):
            return None
        return best

    def _let_go(self, pages: Sequence[int]) -> None:
        for page in pages:
            _count_down(self._num_holders, page)
            if page not in self._num_holders:
                insort(self._free, range(page, page + 1), key=attrgetter("start"))
        self._free = _joined(self._free)

    def _take_run(self, num_pages: int) -> tuple[int, ...] | None:
        """Cut pages from the shortest free run that is long enough."""
        best = min((run for run in self._free if len(run) >= num_pages), key=len, default=None)
        if best is None:
            return None
        index = self._free.index(best)
        self._free[index : index + 1] = [best[num_pages:]] if len(best) > num_pages else []
        return tuple(best[:num_pages])

    def _take_any(self, num_pages: int) -> tuple[int, ...] | None:
        """Cut pages from the first free runs."""
        if num_pages > self.num_free:
            return None
        taken: list[int] = []
        while len(taken) < num_pages:
            run = self._free.pop(0)
            wanted = num_pages - len(taken)
            taken += run[:wanted]
            if len(run) > wanted:
                self._free.insert(0, run[wanted:])
        return tuple(taken)


def _count_down(counter: Counter[int], page: int) -> None:
    """Take one off a count; a count of none is dropped."""
    left = counter.pop(page) - 1  # `del` of a Counter takes ten times as long
    if left:
        counter[page] = left


def _joined(runs: list[range]) -> list[range]:
    """Join runs that touch; `runs` are in order."""
    joined: list[range] = []
    for run in runs:
        if joined and joined[-1].stop == run.start:
            joined[-1] = range(joined[-1].start, run.stop)
        else:
            joined.append(run)
    return joined
