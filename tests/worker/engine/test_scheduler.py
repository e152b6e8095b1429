"""The scheduler by itself: plain Python, every rule as a property of random traffic."""

import subprocess
import sys
from collections import Counter
from itertools import cycle

import pytest
from hypothesis import given, settings, strategies as st

from llama_herd.model.pages import PAGE_TOKENS, Pages, pages_for
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.protocol.priority import MAX_PRIORITY
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine import wait_queue as waiting_line
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.prompt_shares import MAX_SCORED_TOKENS
from llama_herd.worker.engine.runner import Row
from llama_herd.worker.engine.scheduler import MAX_PREEMPTIONS, Scheduler
from llama_herd.worker.engine.sequence import Sequence
from tests.examples import for_any

NUM_PAGES, MAX_ROWS, BUDGET = 8, 3, 50


def sequence(
    job_id: str, num_prompt: int, max_tokens: int, *, token_id: int = 1, tenant: str = "", priority: int = 0
) -> Sequence:
    return Sequence(
        job_id=job_id,
        prompt_ids=[token_id] * num_prompt,
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        max_length=NUM_PAGES * PAGE_TOKENS,
        eos_ids=frozenset(),
        detokenizer=Detokenizer([b"x"] * 4),
        tenant=tenant,
        priority=priority,
    )


def scored(job_id: str, num_prompt: int) -> Sequence:
    """One that asks how likely its prompt is."""
    return Sequence(
        job_id=job_id,
        prompt_ids=[1] * num_prompt,
        params=SamplingParams(max_tokens=1, prompt_logprobs=0),
        seed=0,
        max_length=4096,
        eos_ids=frozenset(),
        detokenizer=Detokenizer([b"", b"x"]),
    )


def new_scheduler(consecutive: bool = True, prefill_tokens: int = BUDGET) -> Scheduler:
    prefixes = PrefixCache(Pages(NUM_PAGES, consecutive=consecutive))
    return Scheduler(prefixes, max_rows=MAX_ROWS, prefill=PrefillBudget(prefill_tokens))


def num_prompt_tokens(rows: list[Row]) -> int:
    return sum(row.num_tokens for row in rows if row.num_tokens > 1)


def step(scheduler: Scheduler) -> None:
    """What the engine does around a batch, without a model."""
    for row in scheduler.next_batch():
        scheduler.note_computed(row)
        scheduler.note_read(row)
        if row.is_complete:
            row.sequence.append(1)
        if row.sequence.finish_reason:
            scheduler.remove(row.sequence)


@pytest.mark.long
@for_any(
    st.lists(
        st.tuples(
            st.integers(1, 200),
            st.integers(1, 200),
            st.integers(1, 2),
            st.sampled_from("ab"),
            st.integers(-2, 2),
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 11), max_size=4),
    st.booleans(),
)
def test_random_traffic_keeps_every_rule(
    jobs: list[tuple[int, int, int, str, int]], cancelled: list[int], consecutive: bool
) -> None:
    scheduler = new_scheduler(consecutive)
    sequences = [
        sequence(f"job-{n}", num_prompt, max_tokens, token_id=token_id, tenant=tenant, priority=priority)
        for n, (num_prompt, max_tokens, token_id, tenant, priority) in enumerate(jobs)
    ]
    for one in sequences:
        scheduler.submit(one)
    admitted: list[Sequence] = []
    num_steps = 0
    while scheduler.has_work:
        admitted += scheduler.admit()
        assert not admits_on_a_second_look(scheduler)
        rows = scheduler.next_batch()
        assert rows, "work but no batch"
        assert len(rows) <= MAX_ROWS
        if any(one.num_uncached == 1 for one in scheduler.running):
            assert num_prompt_tokens(rows) <= BUDGET
        assert all(len(row.sequence.pages) == pages_for(row.sequence.num_reserved) for row in rows)
        step(scheduler)
        num_steps += 1
        if num_steps == 5:
            for one in {sequences[n] for n in cancelled if n < len(sequences)}:
                if one in scheduler.running or one in scheduler.waiting:
                    scheduler.remove(one)
    # Who loses a place as soon as it has it is not said to be admitted.
    assert all(num <= 1 + one.num_preemptions for one, num in Counter(admitted).items())
    assert all(0 <= one.num_preemptions <= MAX_PREEMPTIONS for one in sequences)
    assert sum(one.num_preemptions for one in sequences) == scheduler.num_preemptions
    assert all(one.finish_reason for n, one in enumerate(sequences) if n not in cancelled)


def admits_on_a_second_look(scheduler: Scheduler) -> bool:
    """Whether somebody was overlooked since nothing seemed to have changed."""
    scheduler._may_fit = True
    return bool(scheduler.admit())


def test_a_step_scores_a_bounded_number_of_prompt_tokens_and_gets_on() -> None:
    """A scored token takes a row of logits; who is not scored fills the rest of the step."""
    scheduler = Scheduler(
        PrefixCache(Pages(100, consecutive=True)),
        max_rows=MAX_ROWS,
        prefill=PrefillBudget(4 * MAX_SCORED_TOKENS),
    )
    plain = sequence("plain", 400, 1)
    for one in (scored("a", 1500), scored("b", 700), plain):
        scheduler.submit(one)
    assert len(scheduler.admit()) == 3
    most = 0
    while scheduler.has_work:
        rows = scheduler.next_batch()
        assert rows
        num_scored = sum(row.num_scores for row in rows)
        assert num_scored <= MAX_SCORED_TOKENS
        most = max(most, num_scored)
        step(scheduler)
    assert most == MAX_SCORED_TOKENS
    assert plain.finish_reason == "length"


def test_a_waiting_sequence_is_admitted_once_there_is_room_for_all_of_it() -> None:
    scheduler = new_scheduler()
    big, small = sequence("big", 10, 400), sequence("small", 10, 100)
    scheduler.submit(big)
    scheduler.submit(small)
    assert scheduler.admit() == [big]
    assert scheduler.admit() == []
    scheduler.remove(big)
    assert scheduler.admit() == [small]


def steps_until_admitted(scheduler: Scheduler, awaited: Sequence) -> int:
    num_steps = 0
    while awaited not in scheduler.admit():
        step(scheduler)
        num_steps += 1
    return num_steps


@for_any(
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=1, max_size=2),
    st.tuples(st.integers(1, 99), st.integers(200, 400)),
    st.lists(st.tuples(st.integers(1, 9), st.integers(99, 199)), min_size=12, max_size=15),
    st.booleans(),
)
def test_who_passes_a_first_that_has_no_room_delays_it_by_no_more_steps_than_it_has_tokens(
    running: list[tuple[int, int]], first: tuple[int, int], behind: list[tuple[int, int]], consecutive: bool
) -> None:
    num_steps = []
    for passing in ([], behind):
        scheduler = new_scheduler(consecutive, prefill_tokens=10_000)
        for n, size in enumerate(running):
            scheduler.submit(sequence(f"running-{n}", *size, token_id=100 + n))
        scheduler.admit()
        scheduler.submit(big := sequence("first", *first, token_id=99))
        for n, size in enumerate(passing):
            scheduler.submit(sequence(f"behind-{n}", *size, token_id=n))
        num_steps.append(steps_until_admitted(scheduler, big))
    unpassed, passed = num_steps
    assert passed <= unpassed + big.num_reserved


jobs_of_two_tenants = st.lists(
    st.tuples(
        st.integers(1, 99),
        st.integers(1, 400),
        st.sampled_from("ab"),
        st.integers(MAX_PRIORITY - 3, MAX_PRIORITY),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(st.integers(1, 99), st.integers(200, 400)),
    st.integers(MAX_PRIORITY - 3, MAX_PRIORITY),
    jobs_of_two_tenants,
    st.booleans(),
)
def test_nobody_starves_under_an_endless_stream(
    size: tuple[int, int], priority: int, stream: list[tuple[int, int, str, int]], consecutive: bool
) -> None:
    """The bound is that of the line, twice since each who is first may be passed: in tokens, so in steps."""
    rise_tokens, most = 256, NUM_PAGES * PAGE_TOKENS
    num_rises = MAX_PRIORITY - priority
    bound = num_rises * (rise_tokens + most) + 2 * most * (num_rises + 1) + 2 * MAX_ROWS * most
    scheduler = new_scheduler(consecutive, prefill_tokens=10_000)
    coming = enumerate(cycle(stream))

    def fill_line() -> None:
        while len(scheduler.waiting) < 2 * MAX_ROWS:
            n, (num_prompt, max_tokens, tenant, urgency) = next(coming)
            scheduler.submit(
                sequence(f"job-{n}", num_prompt, max_tokens, token_id=n + 2, tenant=tenant, priority=urgency)
            )

    fill_line()
    scheduler.admit()
    victim = sequence("victim", *size, tenant="a", priority=priority)
    scheduler.submit(victim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_line, "RISE_TOKENS", rise_tokens)
        num_steps = 0
        while victim not in scheduler.admit():
            step(scheduler)
            fill_line()
            num_steps += 1
            assert num_steps <= 2 * bound


def test_small_ones_pass_a_first_that_has_no_room_until_they_took_what_it_asks_for() -> None:
    scheduler = new_scheduler()
    scheduler.submit(long := sequence("long", 5, 187))
    scheduler.admit()
    scheduler.submit(first := sequence("first", 10, 380, token_id=2))
    for n in range(9):
        scheduler.submit(sequence(f"small-{n}", 10, 54, token_id=10 + n))
    num_admitted = 0
    while long in scheduler.running:
        num_admitted += len(scheduler.admit())
        step(scheduler)
    assert num_admitted == first.num_reserved // 64
    assert scheduler.admit()[0] is first


def test_prompts_that_await_a_prefix_keep_nobody_else_waiting() -> None:
    scheduler = new_scheduler()
    scheduler.submit(streaming := sequence("streaming", 1, 9, token_id=3))
    scheduler.submit(computing := sequence("computing", 100, 5))
    scheduler.submit(alike := sequence("alike", 100, 5))
    scheduler.submit(other := sequence("other", 10, 150, token_id=2))
    assert scheduler.admit() == [streaming, computing, other]
    scheduler.remove(other)
    num_steps = steps_until_admitted(scheduler, alike)
    assert num_steps == 2, "beside a stream a page takes two steps"
    assert alike.num_cached == PAGE_TOKENS


def test_who_awaits_a_page_is_admitted_once_it_is_computed_though_the_others_prompt_is_not() -> None:
    scheduler = new_scheduler()
    scheduler.submit(streaming := sequence("streaming", 1, 9, token_id=3))
    scheduler.submit(computing := sequence("computing", 200, 5))
    scheduler.submit(alike := sequence("alike", PAGE_TOKENS + 6, 5))
    assert scheduler.admit() == [streaming, computing]
    assert steps_until_admitted(scheduler, alike) == 2
    assert not computing.has_prompt_cached


@pytest.mark.long
@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize("num_prompt", [1, 63, 64, 65, 128, 129])
def test_of_a_prompt_that_is_kept_the_last_token_is_computed_again(
    num_prompt: int, consecutive: bool
) -> None:
    scheduler = new_scheduler(consecutive)
    for job_id, num_found in (("first", 0), ("again", (num_prompt - 1) // PAGE_TOKENS * PAGE_TOKENS)):
        one = sequence(job_id, num_prompt, max_tokens=2)
        scheduler.submit(one)
        assert scheduler.admit() == [one]
        assert one.num_cached == num_found
        while scheduler.has_work:
            step(scheduler)
        assert len(one.ids) == 2


def test_it_needs_neither_a_device_nor_a_queue() -> None:
    # In a process of its own, since others have imported torch here.
    show = "import llama_herd.worker.engine.scheduler, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "redis", "celery", "kombu"} & set(done.stdout.split())


def test_the_more_urgent_is_admitted_first() -> None:
    scheduler = new_scheduler()
    for n in range(MAX_ROWS + 1):
        scheduler.submit(sequence(f"job-{n}", 1, 1))
    scheduler.submit(urgent := sequence("urgent", 1, 1, priority=1))
    assert scheduler.admit()[0] is urgent


def test_a_resumed_sequence_prefills_what_it_has() -> None:
    resumed = sequence("resumed", 3, 10)
    resumed.replay([2, 3])
    assert resumed.num_uncached == 5
    assert resumed.tokens(0, 5) == [1, 1, 1, 2, 3]
    assert resumed.tokens(2, 4) == [1, 2]
    assert resumed.tokens(4, 5) == [3]
