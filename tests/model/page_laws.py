"""What holds of pages at any time, whoever reserves, shares and keeps them."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from llama_herd.model.pages import Pages
from llama_herd.model.prefix_cache import PrefixCache


def check_pages(pages: Pages, kept: Sequence[int] = ()) -> None:
    """Every page is free or has just its owners and `kept` as holders."""
    free = [page for run in pages._free for page in run]
    owners = Counter(page for held in pages._held.values() for page in held)
    holders = owners + Counter(kept)
    assert sorted([*free, *holders]) == list(range(pages.num_pages)), "a page is lost, or there twice"
    assert holders == +pages._num_holders, "holders are counted wrong"
    assert owners == pages._num_owners
    assert all(pages._free), "an empty run is free"
    assert all(one.stop < next.start for one, next in pairwise(pages._free)), "free runs touch or overlap"
    if pages.consecutive:
        for held in pages._held.values():
            assert held == tuple(range(held[0], held[0] + len(held)))


def check_prefixes(prefixes: PrefixCache) -> None:
    """The same of pages that are also kept to be found again; who has promised one holds some."""
    check_pages(prefixes.pages, kept=tuple(prefixes._page_of.values()))
    assert set(prefixes._promised.values()) <= set(prefixes.pages._held)
