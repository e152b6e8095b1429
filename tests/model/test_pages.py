"""Pages are conserved, whatever happens."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llama_herd.model.pages import PAGE_TOKENS, Pages, pages_for
from tests.model.page_laws import check_pages

NUM_PAGES = 12


class PagesMachine(RuleBasedStateMachine):
    """Random reserving and releasing, against a plain list of who holds each page."""

    @initialize(consecutive=st.booleans())
    def start(self, consecutive: bool) -> None:
        self.pages = Pages(NUM_PAGES, consecutive=consecutive)
        self.owners: list[str | None] = [None] * NUM_PAGES
        self.num_owners = 0

    @rule(num_tokens=st.integers(1, (NUM_PAGES + 1) * PAGE_TOKENS))
    def reserve(self, num_tokens: int) -> None:
        owner = f"job-{self.num_owners}"
        self.num_owners += 1
        pages = self.pages.reserve(owner, num_tokens)
        assert (pages is not None) == self.has_room(pages_for(num_tokens))
        if pages is not None:
            assert len(pages) == pages_for(num_tokens)
            assert all(self.owners[page] is None for page in pages), "a page of somebody else"
            for page in pages:
                self.owners[page] = owner

    @precondition(lambda self: any(self.owners))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(set(filter(None, self.owners)))))
        self.pages.release(owner)
        self.owners = [None if holder == owner else holder for holder in self.owners]

    @invariant()
    def counts_agree(self) -> None:
        check_pages(self.pages)
        assert self.pages.num_free == self.owners.count(None)
        held = {page: owner for owner, pages in self.pages._held.items() for page in pages}
        assert held == {page: owner for page, owner in enumerate(self.owners) if owner}

    def has_room(self, num_pages: int) -> bool:
        if not self.pages.consecutive:
            return self.owners.count(None) >= num_pages
        runs = "".join("x" if owner else "." for owner in self.owners)
        return "." * num_pages in runs


@pytest.mark.long
@pytest.mark.parametrize("num_runs", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_pages_are_conserved_under_random_reserve_and_release(num_runs: int) -> None:
    limits = settings(max_examples=num_runs, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(PagesMachine, settings=limits)


@pytest.mark.parametrize(("num_tokens", "num_pages"), [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_a_page_holds_64_tokens(num_tokens: int, num_pages: int) -> None:
    assert pages_for(num_tokens) == num_pages


def test_consecutive_pages_come_from_the_shortest_run_that_is_long_enough() -> None:
    pages = Pages(10, consecutive=True)
    for owner, num_pages in (("a", 3), ("b", 1), ("c", 2), ("d", 1)):
        pages.reserve(owner, num_pages * PAGE_TOKENS)
    pages.release("a")
    pages.release("c")
    # Free now: 0-2, 4-5, 7-9.
    assert pages.reserve("e", 2 * PAGE_TOKENS) == (4, 5)


def test_scattered_pages_use_what_no_run_could_hold() -> None:
    pages = Pages(4, consecutive=False)
    for owner in "abcd":
        pages.reserve(owner, 1)
    pages.release("a")
    pages.release("c")
    assert pages.reserve("e", 2 * PAGE_TOKENS) == (0, 2)


def test_released_neighbours_become_one_run() -> None:
    pages = Pages(3, consecutive=True)
    for owner in "abc":
        pages.reserve(owner, 1)
    for owner in "acb":
        pages.release(owner)
    assert pages.reserve("d", 3 * PAGE_TOKENS) == (0, 1, 2)


def test_check_tells_a_lost_page() -> None:
    pages = Pages(3, consecutive=True)
    pages.reserve("a", 1)
    pages._held.clear()
    with pytest.raises(AssertionError, match="a page is lost"):
        check_pages(pages)


def test_check_tells_a_page_held_twice() -> None:
    pages = Pages(3, consecutive=False)
    pages._held |= {"a": (0,), "b": (0,)}
    pages._free = [range(1, 3)]
    with pytest.raises(AssertionError, match="holders are counted wrong"):
        check_pages(pages)


@pytest.mark.usefixtures("restless")
def test_another_thread_may_ask_at_any_moment_how_many_are_held() -> None:
    """As who reports how a worker is does, while the engine reserves and releases."""
    pages = Pages(512 * 8, consecutive=False)
    with ThreadPoolExecutor(1) as other:
        looking = other.submit(lambda: [pages.num_held for _ in range(2_000)])
        number = 0
        while not looking.done():
            pages.reserve(str(number), 8 * PAGE_TOKENS)
            if number >= 511:
                pages.release(str(number - 511))
            number += 1
    assert all(0 <= num_held <= pages.num_pages for num_held in looking.result())
