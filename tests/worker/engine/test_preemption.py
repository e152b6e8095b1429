"""A sequence of a higher priority takes the place of a lower one, which goes on later as if undisturbed."""

import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import strategies as st

from benchmarks.simulated_card import Costs, SimulatedRunner
from llama_herd.model.pages import PAGE_TOKENS, Pages, pages_for
from llama_herd.model.prefix_cache import Digest, PrefixCache
from llama_herd.tasks.protocol.priority import MAX_PRIORITY
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Displaced
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.scheduler import MAX_PREEMPTIONS, Scheduler
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.examples import for_any
from tests.model.page_laws import check_prefixes
from tests.worker.engine.test_scheduler import BUDGET, MAX_ROWS, NUM_PAGES, new_scheduler, sequence, step
from tests.worker.engine_run import Collector, finish, sequence as job_sequence, with_empty_cache
from tests.worker.overlapping import Overlapping
from tests.worker.ways_to_draw import MODES, jobs, said

URGENT = MAX_PRIORITY


def names(sequences: list[Sequence]) -> list[str]:
    return [one.job_id for one in sequences]


def full_scheduler(*priorities: int) -> Scheduler:
    """One whose rows are all taken, by jobs of these priorities in the order of admission."""
    scheduler = new_scheduler()
    for number, priority in enumerate(priorities):
        scheduler.submit(sequence(f"row-{number}", 5, 30, token_id=number + 2, priority=priority))
        scheduler.admit()
        step(scheduler)
    assert len(scheduler.running) == MAX_ROWS
    return scheduler


@pytest.mark.parametrize(
    ("priorities", "urgent", "leaves"),
    [
        ((0, 0, 0), 1, "row-2"),
        ((0, -1, -1), 1, "row-2"),
        ((0, -1, 0), 1, "row-1"),
        ((-3, 2, 2), 2, "row-0"),
        ((0, 0, 0), 0, None),
        ((1, 2, 3), 1, None),
    ],
)
def test_the_youngest_of_the_lowest_leaves_and_never_an_equal(
    priorities: tuple[int, ...], urgent: int, leaves: str | None
) -> None:
    scheduler = full_scheduler(*priorities)
    rows = names(scheduler.running)
    scheduler.submit(sequence("urgent", 5, 30, priority=urgent))
    assert names(scheduler.admit()) == (["urgent"] if leaves else [])
    assert names(scheduler.running) == [*(row for row in rows if row != leaves), *["urgent"] * bool(leaves)]


def test_it_leaves_for_room_in_the_cache_too_but_only_if_that_is_enough() -> None:
    scheduler = new_scheduler()
    tokens = NUM_PAGES // 2 * PAGE_TOKENS - 5
    for name, priority in (("low", 0), ("high", 3)):
        scheduler.submit(sequence(name, 5, tokens, token_id=len(name), priority=priority))
    scheduler.admit()
    scheduler.submit(whole := sequence("whole", 5, NUM_PAGES * PAGE_TOKENS - 5, token_id=9, priority=2))
    assert not scheduler.admit()
    scheduler.remove(whole)
    scheduler.submit(sequence("half", 5, tokens, token_id=9, priority=2))
    assert names(scheduler.admit()) == ["half"]
    assert names(scheduler.running) == ["high", "half"]


def test_pages_that_those_who_stay_share_are_counted_once() -> None:
    """Else no urgent one would get a place beside many of one long system prompt."""
    scheduler = new_scheduler(consecutive=False, prefill_tokens=1_000)
    prompt = NUM_PAGES // 2 * PAGE_TOKENS - 30  # all pages but the last one are shared
    for name in ("first", "second"):
        scheduler.submit(sequence(name, prompt, 30, priority=3))
        scheduler.admit()
        step(scheduler)
    scheduler.submit(sequence("low", 5, 30, token_id=9))
    scheduler.admit()
    assert len(scheduler.running) == MAX_ROWS
    scheduler.submit(sequence("urgent", 5, 2 * PAGE_TOKENS, token_id=10, priority=3))
    assert names(scheduler.admit()) == ["urgent"]
    assert names(scheduler.running) == ["first", "second", "urgent"]


def test_an_urgent_one_needs_no_room_for_what_it_shares_with_those_who_stay() -> None:
    scheduler = new_scheduler(consecutive=False, prefill_tokens=1_000)
    prompt = (NUM_PAGES - 3) * PAGE_TOKENS + 5
    scheduler.submit(sequence("first", prompt, 30, priority=3))
    scheduler.admit()
    step(scheduler)
    scheduler.submit(sequence("low", 5, 2 * PAGE_TOKENS - 5, token_id=9))
    scheduler.admit()
    assert not scheduler._prefixes.pages.num_free
    scheduler.submit(sequence("urgent", prompt, 30, priority=3))
    assert names(scheduler.admit()) == ["urgent"]
    assert names(scheduler.running) == ["first", "urgent"]


def test_it_waits_before_later_ones_and_leaves_a_few_times_only() -> None:
    scheduler = full_scheduler(0, 0, 0)
    low = scheduler.running[-1]
    for number in range(MAX_PREEMPTIONS + 2):
        scheduler.submit(sequence(f"urgent-{number}", 5, 1, token_id=20 + number, priority=URGENT))
        scheduler.submit(sequence(f"later-{number}", 5, 30, token_id=40 + number))
        was_there = low in scheduler.running
        scheduler.admit()
        if number < MAX_PREEMPTIONS:
            assert was_there
            assert low not in scheduler.running
        while low not in scheduler.running:
            step(scheduler)
            scheduler.admit()
        assert not any(one.job_id.startswith("later") for one in scheduler.running)
    assert low.num_preemptions == MAX_PREEMPTIONS


def test_who_has_waited_long_goes_first_but_takes_the_place_of_no_equal() -> None:
    scheduler = full_scheduler(0, 0, 0)
    rows = names(scheduler.running)
    aged = sequence("aged", 5, 30, token_id=9)
    aged.num_preemptions = MAX_PREEMPTIONS  # so it waits so many levels above its own
    scheduler.submit(aged)
    scheduler.submit(sequence("higher", 5, 30, token_id=10, priority=MAX_PREEMPTIONS))
    assert [one.sequence.job_id for one in scheduler.waiting.in_order()] == ["aged", "higher"]
    assert names(scheduler.admit()) == ["higher"]
    assert names(scheduler.running) == [*rows[:-1], "higher"]


def crowded() -> list[Sequence]:
    """A small one passes an urgent one that finds no room, and is in its way then."""
    pages = PAGE_TOKENS
    return [
        sequence("row", 5, 5 * pages - 5, token_id=2, priority=-1),
        sequence("urgent", 5, 6 * pages - 5, token_id=3, priority=1),
        sequence("small", 5, pages - 5, token_id=4, priority=-1),
    ]


def test_who_has_lost_its_place_at_once_is_not_said_to_be_admitted() -> None:
    scheduler = new_scheduler(consecutive=False)
    row, urgent, small = crowded()
    scheduler.submit(row)
    scheduler.admit()
    step(scheduler)
    for one in (urgent, small):
        scheduler.submit(one)
    admitted = scheduler.admit()
    assert sorted(names(admitted)) == ["small", "urgent"]
    assert all(one in scheduler.running and one.slot >= 0 for one in admitted)


def keep(prefixes: PrefixCache, one: Sequence, num_pages: int) -> dict[int, Digest]:
    """Let the cache have the first pages of a prompt; what they hold, by their numbers."""
    digests = one.digest_pages(num_pages * PAGE_TOKENS)
    reservation = prefixes.reserve("keeper", num_pages * PAGE_TOKENS, digests)
    assert reservation is not None
    held = dict(zip(reservation.pages, digests, strict=True))
    for page, digest in held.items():
        prefixes.publish(page, digest)
    prefixes.release("keeper", digests)
    return held


def test_pages_are_copied_before_one_that_has_its_place_again_overwrites_them() -> None:
    """It has passed the urgent one, left for it, and gets the pages of which that one has a copy."""
    prefixes = PrefixCache(Pages(10, consecutive=True))
    scheduler = Scheduler(prefixes, max_rows=MAX_ROWS, prefill=PrefillBudget(BUDGET))
    row = sequence("row", 5, 4 * PAGE_TOKENS - 5, token_id=2, priority=-1)
    urgent = sequence("urgent", PAGE_TOKENS + 5, 6 * PAGE_TOKENS - 5, token_id=3, priority=1)
    small = sequence("small", 2 * PAGE_TOKENS + 5, PAGE_TOKENS - 5, token_id=4, priority=-1)
    prefixes.reserve("before", 7 * PAGE_TOKENS, [])
    holds = keep(prefixes, urgent, 1) | keep(prefixes, small, 2)
    prefixes.release("before", [])
    scheduler.submit(row)
    scheduler.admit()
    step(scheduler)
    for one in (urgent, small):
        scheduler.submit(one)
    for one in scheduler.admit():
        assert one.num_cached, "it begins with kept pages"
        holds |= {target: holds[source] for source, target in one.copies}
        num_pages = one.num_cached // PAGE_TOKENS
        assert [holds[page] for page in one.pages[:num_pages]] == one.digests[:num_pages]
    assert small.num_preemptions == 1
    assert small in scheduler.running


def test_a_start_is_said_once_however_often_a_place_is_lost() -> None:
    sink = Collector()
    pages = PrefixCache(Pages(NUM_PAGES, consecutive=False))
    runner = SimulatedRunner(Costs())
    engine = Engine(runner, pages, max_rows=MAX_ROWS, prefill=PrefillBudget(50), sink=sink)
    row, urgent, small = crowded()
    engine.submit(row)
    engine.step()
    engine.submit(urgent, small)
    for one in (urgent, small):
        one.is_confirmed = False
    for _ in range(20):
        engine.step()
        engine.confirm(sink.admitted)
    finish(engine)
    assert sorted(one.job_id for one in sink.admitted) == ["row", "small", "urgent"]
    assert set(sink.ends) == {"row", "small", "urgent"}


def test_none_leaves_for_another_tenant() -> None:
    scheduler = full_scheduler(0, 0, 0)
    scheduler.submit(sequence("urgent", 5, 30, tenant="other", priority=URGENT))
    assert not scheduler.admit()


def test_all_outputs_of_a_job_leave_together() -> None:
    scheduler = new_scheduler()
    for number in range(2):
        output = sequence("several", 5, 30, token_id=2)
        output.params = output.params.model_copy(update={"n": 2})
        output.choice = number
        output.__post_init__()
        scheduler.submit(output)
        scheduler.admit()
        step(scheduler)
    scheduler.submit(sequence("other", 5, 30, token_id=3, priority=1))
    scheduler.admit()
    scheduler.submit(sequence("urgent", 5, 30, token_id=4, priority=2))
    scheduler.admit()
    assert names(scheduler.running)[:2] == ["other", "urgent"]
    assert scheduler.num_preemptions == 2


@for_any(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 90), st.integers(-3, 3)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 60), st.integers(1, 60)), max_size=9),
)
def test_what_is_most_urgent_is_admitted_at_the_next_step_while_all_such_fit(
    lower: list[tuple[int, int, int]], urgent: list[tuple[int, int, int]]
) -> None:
    """Unless rows that have left too often are in the way."""
    scheduler = new_scheduler(consecutive=False)
    for number, (num_prompt, max_tokens, priority) in enumerate(lower):
        scheduler.submit(
            sequence(f"low-{number}", num_prompt, max_tokens, token_id=number + 2, priority=priority)
        )
    for number, (num_steps, num_prompt, max_tokens) in enumerate(urgent):
        for _ in range(num_steps):
            scheduler.admit()
            step(scheduler)
        one = sequence(f"urgent-{number}", num_prompt, max_tokens, token_id=50 + number, priority=URGENT)
        stay = [
            row
            for row in scheduler.running
            if row.priority == URGENT or row.num_preemptions == MAX_PREEMPTIONS
        ]
        waits = any(other.priority == URGENT for other in scheduler.waiting)
        num_pages = sum(pages_for(row.num_reserved) for row in (*stay, one))
        scheduler.submit(one)
        scheduler.admit()
        if not waits and len(stay) < MAX_ROWS and num_pages <= NUM_PAGES:
            assert one in scheduler.running
            rows = scheduler.next_batch()
            first = max((row.sequence.priority for row in rows if row.num_tokens > 1), default=URGENT)
            assert first == URGENT or one.num_uncached == 1, "no lower prompt is computed before its own"
    while scheduler.has_work:
        scheduler.admit()
        step(scheduler)


def disturb(
    engine: Engine, sink: Collector, model: LoadedModel, low: list[Sequence], rng: random.Random
) -> int:
    """Run jobs while urgent ones come at any time; how many rows have lost their places.

    As jobs do they confirm a start when it is on record.
    """
    for one in low:
        one.is_confirmed = False
        engine.submit(one)
    number = 0
    while engine.has_work or engine.scheduler.running:
        engine.step()
        engine.confirm(sink.admitted)
        check_prefixes(engine.prefixes)
        if number < len(low) and rng.random() < 0.25:
            prompt = rng.choice(["now", "now and " * rng.randint(1, 20)])
            engine.submit(job_sequence(model, f"urgent-{number}", prompt, max_tokens=rng.randint(1, 6)))
            number += 1
    return engine.scheduler.num_preemptions


@pytest.mark.long
@pytest.mark.usefixtures("masks_as_on_a_card")
@pytest.mark.parametrize(
    "num_rows", [20, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
@pytest.mark.parametrize("overlaps", [False, True])
def test_preempted_rows_end_with_the_ids_of_an_undisturbed_run(
    loaded_wide: LoadedModel,
    settings: WorkerSettings,
    step_by_step: Callable[..., Collector],
    num_rows: int,
    overlaps: bool,
) -> None:
    """However they are drawn; each is said to have started once, and all of its tokens once.

    A thousand of them, half of these where steps overlap.
    """
    few, num_sequences = settings.model_copy(update={"slots": 4}), len(MODES) + 2
    undisturbed = said(step_by_step(*MODES, num_sequences=num_sequences))
    for seed in count():
        model, sink = with_empty_cache(loaded_wide), Collector()
        low = jobs(model, *MODES, num_sequences=num_sequences)
        for one in low:
            one.priority = -1
        engine = Overlapping(model, few, sink).engine if overlaps else model.engine(few, sink)
        num_preempted = disturb(engine, sink, model, low, random.Random(seed))
        finish(engine)
        found = {name: lines for name, lines in said(sink).items() if not name[0].startswith("urgent")}
        assert found == undisturbed, f"seed {seed}"
        assert sum(isinstance(one, Displaced) for one in sink) == num_preempted > 0, f"seed {seed}"
        starts = sink.admitted
        assert len(starts) == len(set(starts)) == len(said(sink)), f"seed {seed}"
        num_rows -= num_preempted
        if num_rows <= 0:
            break
