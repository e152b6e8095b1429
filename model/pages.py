"""Pages: which sequence holds which piece of the KV cache."""

from collections.abc import Mapping
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
    without, its pages lie anywhere and are read through a table (GPU).
    """

    def __init__(self, num_pages: int, *, consecutive: bool) -> None:
        self.num_pages = num_pages
        self.consecutive = consecutive
        self._free = [range(num_pages)] if num_pages else []  # runs in order, no two touch
        self._held: dict[str, tuple[int, ...]] = {}

    @property
    def num_free(self) -> int:
        return sum(len(run) for run in self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - self.num_free

    @property
    def held(self) -> Mapping[str, tuple[int, ...]]:
        """The pages of each owner, in the order of its tokens."""
        return self._held

    def reserve(self, owner: str, num_tokens: int) -> tuple[int, ...] | None:
        """Give `owner` the pages for `num_tokens` tokens at once, or None when there is no room now."""
        assert owner not in self._held, f"{owner} holds pages already"
        assert num_tokens > 0, f"{owner} asks for {num_tokens} tokens"
        num_pages = pages_for(num_tokens)
        pages = self._take_run(num_pages) if self.consecutive else self._take_any(num_pages)
        if pages is not None:
            self._held[owner] = pages
        return pages

    def release(self, owner: str) -> None:
        """Take back all pages of `owner`."""
        released = [range(page, page + 1) for page in self._held.pop(owner)]
        self._free = _joined(sorted([*self._free, *released], key=attrgetter("start")))

    def check(self) -> None:
        """Raise RuntimeError unless each page is free or held, once."""
        free = [page for run in self._free for page in run]
        held = [page for pages in self._held.values() for page in pages]
        if sorted(free + held) != list(range(self.num_pages)):
            raise RuntimeError(
                f"{self.num_pages} pages are not {len(free)} free and {len(held)} held, once each"
            )
        if self._free != _joined(self._free) or not all(self._free):
            raise RuntimeError(f"free runs are out of order, touch or are empty: {self._free}")
        for owner, pages in self._held.items():
            if self.consecutive and pages != tuple(range(pages[0], pages[0] + len(pages))):
                raise RuntimeError(f"{owner} holds pages {pages}, which are not consecutive")

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


def _joined(runs: list[range]) -> list[range]:
    """The same pages with touching runs made one; `runs` are in order."""
    joined: list[range] = []
    for run in runs:
        if joined and joined[-1].stop == run.start:
            joined[-1] = range(joined[-1].start, run.stop)
        else:
            joined.append(run)
    return joined
