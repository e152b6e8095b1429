"""What is found was computed, and pages are conserved, whatever happens."""

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
from llama_herd.model.prefix_cache import Digest, PageCopy, PrefixCache, Reservation, page_digest, root_digest
from tests.model.page_laws import check_prefixes

NUM_PAGES = 10


def digests_of(texts: tuple[int, ...], salt: str = "") -> list[Digest]:
    """The digests of pages that are filled with one number each."""
    digests = [root_digest(salt)]
    for text in texts:
        digests.append(page_digest(digests[-1], [text] * PAGE_TOKENS))
    return digests[1:]


class Owner:
    """A sequence: its pages, what they should hold, and how many are computed."""

    def __init__(self, texts: tuple[int, ...], pages: tuple[int, ...], num_computed: int) -> None:
        self.texts = texts
        self.digests = digests_of(texts)
        self.pages = pages
        self.num_computed = num_computed


class PrefixMachine(RuleBasedStateMachine):
    """Random sequences of few different pages, over a storage that remembers what each page holds."""

    @initialize(consecutive=st.booleans())
    def start(self, consecutive: bool) -> None:
        self.cache = PrefixCache(Pages(NUM_PAGES, consecutive=consecutive))
        self.storage: list[Digest | None] = [None] * NUM_PAGES
        self.owners: dict[str, Owner] = {}
        self.num_names = 0

    @rule(texts=st.lists(st.integers(0, 1), max_size=4).map(tuple), num_more=st.integers(1, 200))
    def reserve(self, texts: tuple[int, ...], num_more: int) -> None:
        name = f"job-{self.num_names}"
        self.num_names += 1
        digests = digests_of(texts)
        num_tokens = PAGE_TOKENS * len(texts) + num_more
        may_begin = self.cache.awaited(digests) is None and self.has_room(pages_for(num_tokens), digests)
        reservation = self.cache.reserve(name, num_tokens, digests)
        assert (reservation is not None) == may_begin
        if reservation is None:
            return
        self.settle(name, texts, reservation, num_tokens, reservation.num_filled // PAGE_TOKENS)

    def has_room(self, num_pages: int, digests: list[Digest]) -> bool:
        """Whether a sequence fits beside those that run, if all else is given up but what it shares."""
        held = {page for owner in self.owners.values() for page in owner.pages}
        if self.cache.pages.consecutive:
            starts = range(NUM_PAGES - num_pages + 1)
            return any(held.isdisjoint(range(start, start + num_pages)) for start in starts)
        return num_pages - self.cache.num_shared(digests, held) <= NUM_PAGES - len(held)

    def settle(
        self, name: str, texts: tuple[int, ...], reservation: Reservation, num_tokens: int, num_filled: int
    ) -> None:
        """Copy as the cache would, and check that the first pages hold what they should."""
        pages, digests = reservation.pages, digests_of(texts)
        assert len(pages) == pages_for(num_tokens)
        content = [self.storage[copy.source] for copy in reservation.copies]
        for copy, digest in zip(reservation.copies, content, strict=True):
            self.storage[copy.target] = digest
        assert [self.storage[page] for page in pages[:num_filled]] == digests[:num_filled]
        self.owners[name] = Owner(texts, pages, num_filled)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), num_more=st.integers(1, 100))
    def fork(self, data: st.DataObject, num_more: int) -> None:
        """Somebody's twin begins with all that is computed of it."""
        parent = self.owners[data.draw(st.sampled_from(sorted(self.owners)))]
        name = f"job-{self.num_names}"
        self.num_names += 1
        num_common = PAGE_TOKENS * parent.num_computed
        reservation = self.cache.fork(name, num_common + num_more, parent.pages, num_common)
        if reservation is not None:
            assert reservation.num_filled == num_common
            texts = parent.texts[: parent.num_computed]
            self.settle(name, texts, reservation, num_common + num_more, parent.num_computed)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """One more page of somebody is computed."""
        owner = self.owners[data.draw(st.sampled_from(sorted(self.owners)))]
        if owner.num_computed < len(owner.digests):
            page, digest = owner.pages[owner.num_computed], owner.digests[owner.num_computed]
            assert not self.cache.pages.is_shared(page), "a page that others read is overwritten"
            self.storage[page] = digest
            self.cache.publish(page, digest)
            owner.num_computed += 1

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.owners)))
        self.cache.release(name, self.owners.pop(name).digests)

    @invariant()
    def every_owner_reads_what_is_its_own(self) -> None:
        check_prefixes(self.cache)
        for owner in self.owners.values():
            computed = [self.storage[page] for page in owner.pages[: owner.num_computed]]
            assert computed == owner.digests[: owner.num_computed]

    @invariant()
    def only_what_somebody_is_to_compute_is_promised(self) -> None:
        known = {digest for owner in self.owners.values() for digest in owner.digests}
        awaited = {digest for owner in self.owners.values() for digest in owner.digests[owner.num_computed :]}
        assert {digest for digest in known if self.cache.is_promised(digest)} <= awaited


@pytest.mark.long
@pytest.mark.parametrize("num_runs", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_what_is_found_was_computed_whatever_happens(num_runs: int) -> None:
    limits = settings(max_examples=num_runs, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(PrefixMachine, settings=limits)


@pytest.fixture(params=[True, False], ids=["consecutive", "scattered"])
def cache(request: pytest.FixtureRequest) -> PrefixCache:
    return PrefixCache(Pages(8, consecutive=request.param))


def fill(cache: PrefixCache, owner: str, texts: tuple[int, ...], salt: str = "") -> list[Digest]:
    """Reserve and compute so many full pages, and room for one token."""
    digests = digests_of(texts, salt)
    reservation = cache.reserve(owner, PAGE_TOKENS * len(texts) + 1, digests)
    assert reservation is not None
    for page, digest in zip(reservation.pages, digests, strict=False):
        cache.publish(page, digest)
    return digests


def num_filled(cache: PrefixCache, texts: tuple[int, ...], salt: str = "") -> int | None:
    """How many pages of a prefix a new sequence would find."""
    reservation = cache.reserve("probe", PAGE_TOKENS * len(texts) + 1, digests_of(texts, salt))
    if reservation is None:
        return None
    cache.release("probe", [])
    return reservation.num_filled // PAGE_TOKENS


def test_a_prefix_outlives_its_sequence(cache: PrefixCache) -> None:
    cache.release("first", fill(cache, "first", (1, 2)))
    assert num_filled(cache, (1, 2, 3)) == 2
    assert num_filled(cache, (1, 3)) == 1
    assert num_filled(cache, (2, 2)) == 0


def test_a_prefix_of_another_salt_is_not_found(cache: PrefixCache) -> None:
    cache.release("first", fill(cache, "first", (1, 2), salt="tenant"))
    assert num_filled(cache, (1, 2)) == 0
    assert num_filled(cache, (1, 2), salt="tenant") == 2


def test_who_wants_what_is_just_being_computed_waits_for_it(cache: PrefixCache) -> None:
    digests = digests_of((1, 2))
    first = cache.reserve("first", 2 * PAGE_TOKENS + 1, digests)
    assert first is not None
    assert num_filled(cache, (1, 2)) is None
    assert num_filled(cache, (5,)) == 0
    cache.publish(first.pages[0], digests[0])
    cache.publish(first.pages[1], digests[1])
    assert num_filled(cache, (1, 2)) == 2


def test_nobody_waits_for_a_sequence_that_is_gone(cache: PrefixCache) -> None:
    digests = digests_of((1, 2))
    cache.reserve("first", 2 * PAGE_TOKENS + 1, digests)
    cache.release("first", digests)
    assert num_filled(cache, (1, 2)) == 0


def test_the_least_recently_used_page_is_given_up_first(cache: PrefixCache) -> None:
    for texts in ((1, 2), (3, 4)):
        cache.release("it", fill(cache, "it", texts))
    assert num_filled(cache, (1, 2)) == 2  # used again: 3 and 4 are older now
    assert cache.reserve("big", 6 * PAGE_TOKENS, []) is not None
    assert cache.pages.num_free == cache.pages.num_pages - 8
    cache.release("big", [])
    if not cache.pages.consecutive:
        assert num_filled(cache, (1, 2)) == 2
        assert num_filled(cache, (3, 4)) == 0


def test_nothing_is_given_up_for_a_sequence_that_has_no_room_anyway(cache: PrefixCache) -> None:
    cache.reserve("running", 3 * PAGE_TOKENS, [])
    cache.release("kept", fill(cache, "kept", (1, 2)))
    assert cache.reserve("too big", 6 * PAGE_TOKENS, []) is None
    assert num_filled(cache, (1, 2)) == 2


def test_what_is_in_use_is_not_given_up(cache: PrefixCache) -> None:
    """It would be found no more, and make no room."""
    fill(cache, "running", (1,))
    cache.release("kept", fill(cache, "kept", (2, 3)))
    assert cache.reserve("big", 6 * PAGE_TOKENS, []) is not None
    cache.release("big", [])
    assert num_filled(cache, (1,)) == 1


def test_all_that_is_kept_may_be_given_up(cache: PrefixCache) -> None:
    cache.release("kept", fill(cache, "kept", tuple(range(cache.pages.num_pages - 1))))
    assert cache.reserve("big", cache.pages.num_pages * PAGE_TOKENS, []) is not None


def test_pages_that_lie_anywhere_are_given_up_wherever_they_lie() -> None:
    cache = PrefixCache(Pages(8, consecutive=False))
    for number in range(8):
        (digest,) = digests_of((number,))
        reservation = cache.reserve(str(number), PAGE_TOKENS, [digest])
        assert reservation is not None
        cache.publish(reservation.pages[0], digest)
    for number in range(0, 8, 2):
        cache.release(str(number), digests_of((number,)))
    assert cache.reserve("big", 4 * PAGE_TOKENS, []) is not None


def test_switched_off_it_keeps_and_finds_nothing() -> None:
    cache = PrefixCache(Pages(8, consecutive=True), is_on=False)
    cache.release("first", fill(cache, "first", (1, 2)))
    assert num_filled(cache, (1, 2)) == 0
    assert cache.pages.num_free == cache.pages.num_pages


def test_the_hit_rate_counts_tokens(cache: PrefixCache) -> None:
    cache.release("first", fill(cache, "first", (1, 2)))
    assert cache.num_found_tokens == 0
    num_filled(cache, (1, 2))
    assert cache.num_found_tokens == cache.num_queried_tokens / 2


def test_of_a_prefix_the_last_page_is_given_up_first() -> None:
    cache = PrefixCache(Pages(8, consecutive=False))
    cache.release("it", fill(cache, "it", (1, 2, 3)))
    assert cache.reserve("big", 6 * PAGE_TOKENS, []) is not None
    cache.release("big", [])
    assert num_filled(cache, (1, 2, 3)) == 2


@pytest.mark.parametrize("consecutive", [True, False])
def test_a_fork_shares_full_pages_where_it_can_and_copies_the_rest(consecutive: bool) -> None:
    cache = PrefixCache(Pages(8, consecutive=consecutive), is_on=False)
    parent = cache.reserve("parent", 3 * PAGE_TOKENS, [])
    assert parent is not None
    fork = cache.fork("fork", 4 * PAGE_TOKENS, parent.pages, 2 * PAGE_TOKENS + 10)
    assert fork is not None
    assert fork.num_filled == 2 * PAGE_TOKENS + 10
    first_own = 0 if consecutive else 2
    assert fork.copies == tuple(map(PageCopy, parent.pages[first_own:3], fork.pages[first_own:3]))
    assert fork.pages[:first_own] == parent.pages[:first_own]
    check_prefixes(cache)
