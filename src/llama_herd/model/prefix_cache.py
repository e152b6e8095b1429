"""PrefixCache: pages whose tokens have been computed, found again by what they hold."""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence, Set
from hashlib import blake2b
from typing import NamedTuple, Self

from llama_herd.model.pages import PAGE_TOKENS, Pages, pages_for

#: Names a page by its tokens and all tokens before them.
Digest = bytes


def root_digest(salt: str) -> Digest:
    """The digest that the first page of a sequence is chained to; different salts share nothing."""
    return blake2b(salt.encode(), digest_size=16).digest()


def page_digest(before: Digest, page_ids: Sequence[int]) -> Digest:
    """The digest of a full page whose predecessor has the digest `before`."""
    return blake2b(before + array("q", page_ids).tobytes(), digest_size=16).digest()


class PageCopy(NamedTuple):
    """Copy page `source` to page `target`."""

    source: int
    target: int


class Reservation(NamedTuple):
    """An owner's pages. The first `num_filled` tokens need not be computed.

    Pages that cannot be shared are copied, before anything else is written to the cache.
    """

    pages: tuple[int, ...]
    num_filled: int
    copies: tuple[PageCopy, ...]

    @classmethod
    def from_sources(cls, pages: tuple[int, ...], num_filled: int, sources: Sequence[int]) -> Self:
        """The first tokens are in the pages `sources`; each that is not the owner's page itself is copied."""
        copies = (PageCopy(*pair) for pair in zip(sources, pages, strict=False) if pair[0] != pair[1])
        return cls(pages, num_filled, tuple(copies))


class PrefixCache:
    """Keeps computed pages until their room is needed; least recently used go first.

    A found prefix is shared; it is copied only where the pages of an owner must be consecutive. Promised
    pages are those that an owner has reserved and is computing; others wait for them. With `is_on` false
    nothing is kept and nothing found.
    """

    def __init__(self, pages: Pages, *, is_on: bool = True) -> None:
        self.pages = pages
        self.num_queried_tokens = 0
        self.num_found_tokens = 0
        self._is_on = is_on
        self._page_of: OrderedDict[Digest, int] = OrderedDict()  # least recently used first
        self._promised: dict[Digest, Hashable] = {}  # to the owner that computes the page

    def awaited(self, digests: Sequence[Digest]) -> Digest | None:
        """The first of these pages that is not kept, if it is promised; else None."""
        num_found = len(self._find(digests))
        missing = digests[num_found] if num_found < len(digests) else None
        return missing if self.is_promised(missing) else None

    def is_promised(self, digest: Digest | None) -> bool:
        """Whether an owner is computing this page."""
        return digest in self._promised

    def reserve(self, owner: Hashable, num_tokens: int, digests: Sequence[Digest]) -> Reservation | None:
        """Reserve the pages for `num_tokens` tokens, the first of which have these digests.

        None when there is no room now, or when the first page that is not kept is promised: to wait for it is
        cheaper than to compute it again.
        """
        found = self._find(digests)
        if len(found) < len(digests) and digests[len(found)] in self._promised:
            return None
        pages = self._take(owner, num_tokens, found)
        if pages is None:
            return None
        if self._is_on:
            self._promised.update(dict.fromkeys(digests[len(found) :], owner))
        self.num_queried_tokens += PAGE_TOKENS * len(digests)
        self.num_found_tokens += PAGE_TOKENS * len(found)
        return Reservation.from_sources(pages, PAGE_TOKENS * len(found), found)

    def fork(
        self, owner: Hashable, num_tokens: int, parent: Sequence[int], num_common: int
    ) -> Reservation | None:
        """Reserve for a sequence whose first `num_common` tokens are in its parent's pages; None: no room."""
        pages = self._take(owner, num_tokens, parent[: num_common // PAGE_TOKENS])
        if pages is None:
            return None
        return Reservation.from_sources(pages, num_common, parent[: pages_for(num_common)])

    def num_shared(self, digests: Sequence[Digest], pages: Set[int]) -> int:
        """How many of these pages a reservation with these digests would share."""
        return 0 if self.pages.consecutive else sum(page in pages for page in self._find(digests))

    def publish(self, page: int, digest: Digest) -> None:
        """Note that a page is computed, so that others can find it."""
        self._promised.pop(digest, None)
        if self._is_on and digest not in self._page_of:
            self._page_of[digest] = page
            self.pages.keep(page)

    def release(self, owner: Hashable, digests: Sequence[Digest]) -> None:
        """Take back the pages of `owner`; of those with these digests, the published ones stay for others."""
        for digest in digests:
            if self._promised.get(digest) == owner:
                del self._promised[digest]
        self._touch(digests)
        self.pages.release(owner)

    def forget(self, digests: Sequence[Digest]) -> None:
        """Find these pages no more: something is wrong with what they hold."""
        for digest in digests:
            if digest in self._page_of:
                self.pages.drop(self._page_of.pop(digest))

    def _find(self, digests: Sequence[Digest]) -> tuple[int, ...]:
        found: list[int] = []
        for digest in digests:
            page = self._page_of.get(digest)
            if page is None:
                break
            found.append(page)
        self._touch(digests[: len(found)])
        return tuple(found)

    def _take(self, owner: Hashable, num_tokens: int, filled: Sequence[int]) -> tuple[int, ...] | None:
        """Reserve pages, giving up kept ones if need be; `filled` become the first where pages are shared.

        Where they are copied instead they may be given up: reservations are copied in their order, and all
        sources of one are read before a target is written.
        """
        shared = () if self.pages.consecutive else filled
        pages = self.pages.reserve(owner, num_tokens, shared)
        if pages is None and self._make_room(pages_for(num_tokens) - len(shared), set(shared)):
            pages = self.pages.reserve(owner, num_tokens, shared)
        return pages

    def _touch(self, digests: Sequence[Digest]) -> None:
        """Make pages the most recently used, the first of a prefix last: without it the others are no use."""
        for digest in reversed(digests):
            if digest in self._page_of:
                self._page_of.move_to_end(digest)

    def _make_room(self, num_pages: int, wanted: set[int]) -> bool:
        """Give up kept pages, but no `wanted` one, so that `num_pages` fit.

        If they cannot fit, give up none and return False.
        """
        unused = {
            page: digest
            for digest, page in self._page_of.items()
            if page not in wanted and not self.pages.is_shared(page)
        }
        if self.pages.consecutive:
            window = self.pages.cheapest_run(num_pages, unused)
            given_up = None if window is None else [page for page in window if page in unused]
        else:
            num_missing = max(0, num_pages - self.pages.num_free)
            given_up = list(unused)[:num_missing] if num_missing <= len(unused) else None
        for page in given_up or ():
            self.pages.drop(self._page_of.pop(unused[page]))
        return given_up is not None


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
