"""The scheduler by itself: plain Python, every rule as a property of random traffic."""

from hypothesis import given, strategies as st

from llama_herd.model.pages import PAGE_TOKENS, Pages, pages_for
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.scheduler import Scheduler
from llama_herd.worker.sequence import Sequence
from llama_herd.worker.writer import Writer

NUM_PAGES, MAX_ROWS, BUDGET = 8, 3, 50


def sequence(job_id: str, num_prompt: int, max_tokens: int) -> Sequence:
    return Sequence(
        job_id=job_id,
        prompt_ids=[1] * num_prompt,
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        max_length=NUM_PAGES * PAGE_TOKENS,
        eos_ids=frozenset(),
        writer=Writer([b"", b"x"]),
    )


def new_scheduler(consecutive: bool = True) -> Scheduler:
    return Scheduler(
        PrefixCache(Pages(NUM_PAGES, consecutive=consecutive)), max_rows=MAX_ROWS, prefill_tokens=BUDGET
    )


def step(scheduler: Scheduler) -> None:
    """What the engine does around a batch, without a model."""
    for row in scheduler.next_batch():
        is_complete = row.is_complete
        scheduler.note_computed(row)
        if is_complete:
            row.sequence.append(1)
        if row.sequence.finish_reason:
            scheduler.remove(row.sequence)


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), max_size=12),
    st.lists(st.integers(0, 11), max_size=4),
    st.booleans(),
)
def test_random_traffic_keeps_every_rule(
    sizes: list[tuple[int, int]], cancelled: list[int], consecutive: bool
) -> None:
    scheduler = new_scheduler(consecutive)
    sequences = [sequence(f"job-{n}", *size) for n, size in enumerate(sizes)]
    for one in sequences:
        scheduler.submit(one)
    admitted: list[Sequence] = []
    num_steps = 0
    while scheduler.has_work:
        admitted += scheduler.admit()
        rows = scheduler.next_batch()
        assert rows, "work but no batch"
        assert len(rows) <= MAX_ROWS
        assert sum(row.num_tokens for row in rows if row.num_tokens > 1) <= BUDGET
        assert all(len(row.sequence.pages) == pages_for(row.sequence.num_reserved) for row in rows)
        step(scheduler)
        num_steps += 1
        if num_steps == 5:
            for one in {sequences[n] for n in cancelled if n < len(sequences)}:
                if one in scheduler.running or one in scheduler.waiting:
                    scheduler.remove(one)
    assert admitted == [one for one in sequences if one in admitted], "first come, first admitted"


def test_a_waiting_sequence_is_admitted_once_there_is_room_for_all_of_it() -> None:
    scheduler = new_scheduler()
    big, small = sequence("big", 10, 400), sequence("small", 10, 100)
    scheduler.submit(big)
    scheduler.submit(small)
    assert scheduler.admit() == [big]
    assert scheduler.admit() == []
    scheduler.remove(big)
    assert scheduler.admit() == [small]


def test_prompts_share_the_budget_and_decode_costs_none_of_it() -> None:
    scheduler = new_scheduler()
    first, second = sequence("first", 30, 5), sequence("second", 40, 5)
    scheduler.submit(first)
    scheduler.submit(second)
    scheduler.admit()
    assert [row.num_tokens for row in scheduler.next_batch()] == [30, 20]
    step(scheduler)
    assert [row.num_tokens for row in scheduler.next_batch()] == [1, 20]


def test_a_resumed_sequence_prefills_what_it_has() -> None:
    resumed = sequence("resumed", 3, 10)
    resumed.replay([1, 1])
    assert resumed.num_uncached == 5
    assert resumed.uncached(5) == [1] * 5
    resumed.num_cached = 2
    assert resumed.uncached(2) == [1, 1]
    resumed.num_cached = 4
    assert resumed.uncached(1) == [1]
