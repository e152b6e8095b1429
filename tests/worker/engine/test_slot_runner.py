"""Laws of steps that overlap: every job gets what it gets when each step is read before the next one.

The device is a stand-in that lets the host see nothing too early; the model is real.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.worker.engine.graph_device import Replay
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.step_graphs import StepGraphs
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.examples import seeds
from tests.model.page_laws import check_prefixes
from tests.model.plain_kernels import with_plain_kernels
from tests.worker.engine_run import PREFIX, Collector, finish, run, sequence
from tests.worker.overlapping import Overlapping, run_overlapping, with_layers
from tests.worker.ways_to_draw import MODES, PENALTIES, job_of, jobs, logprobs, said

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("masks_as_on_a_card")]

#: Enough for steps that go wrong.
FEW = ("penalties", "biases", "plain")
#: Sequences of which each mode has one, or as many as it asks for.
ALL = len(MODES) + 2


@pytest.fixture
def shallow(wide: LoadedModel) -> LoadedModel:
    """With one layer: enough to draw by. In the second one keys also tell what was read in the first."""
    wide.llama = with_layers(wide.llama, 1)
    return wide


@pytest.mark.parametrize("mode", MODES)
def test_each_way_to_draw_gives_what_it_gives_step_by_step(
    shallow: LoadedModel, settings: WorkerSettings, step_by_step: Callable[..., Collector], mode: str
) -> None:
    expected = step_by_step(mode, is_shallow=True)
    sink = run_overlapping(shallow, settings, jobs(shallow, mode))
    assert said(sink) == said(expected)
    assert {name: pytest.approx(numbers, abs=1e-4) for name, numbers in logprobs(expected).items()} == (
        logprobs(sink)
    )


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_all_ways_to_draw_in_one_batch_give_the_same(
    wide: LoadedModel, settings: WorkerSettings, step_by_step: Callable[..., Collector], seed: int
) -> None:
    sink = run_overlapping(wide, settings, jobs(wide, *MODES, seed=seed, num_sequences=ALL))
    assert said(sink) == said(step_by_step(*MODES, seed=seed, num_sequences=ALL))


@pytest.mark.parametrize("seed", seeds(3, 6))
def test_jobs_that_come_and_go_at_any_step_get_the_same(
    wide: LoadedModel, settings: WorkerSettings, step_by_step: Callable[..., Collector], seed: int
) -> None:
    alone = said(step_by_step(*MODES, seed=seed, num_sequences=ALL))
    rng, sink = random.Random(seed), Collector()
    overlapping = Overlapping(wide, settings, sink)
    engine, waiting = overlapping.engine, jobs(wide, *MODES, seed=seed, num_sequences=ALL)
    cancelled = {one.job_id for one in waiting if rng.random() < 0.3}
    while waiting or engine.has_work:
        while waiting and rng.random() < 0.5:
            engine.submit(waiting.pop())
        for one in list(engine.scheduler.running):
            if one.job_id in cancelled and one.ids and rng.random() < 0.2:
                engine.abort([one.info], "cancelled")
        engine.step()
        check_prefixes(engine.prefixes)
    assert engine.prefixes.pages.num_held == 0
    for name, lines in said(sink).items():
        if "cancelled" in lines:
            ids = [line for line in lines if isinstance(line, tuple)]
            assert ids == [line for line in alone[name] if isinstance(line, tuple)][: len(ids)]
        else:
            assert lines == alone[name]


@pytest.mark.parametrize("prefill_tokens", [13, 40, 1000])
def test_prompts_read_in_their_pages_beside_rows_that_decode_give_the_same(
    wide: LoadedModel, settings: WorkerSettings, step_by_step: Callable[..., Collector], prefill_tokens: int
) -> None:
    """In chunks, after cached prefixes, and among outputs that share a prompt."""
    llama, prompts = with_plain_kernels(wide.llama)
    sink = Collector()
    budget = settings.model_copy(update={"prefill_tokens": prefill_tokens})
    overlapping = Overlapping(wide, budget, sink, llama)
    overlapping.engine.submit(*jobs(wide, *MODES, num_sequences=ALL))
    finish(overlapping.engine)
    assert said(sink) == said(step_by_step(*MODES, num_sequences=ALL))
    assert max(len(spans.num_tokens) for spans in prompts.given) > 1
    assert any((spans.first.num_keys > 1).any() for spans in prompts.given)


def test_a_resumed_sequence_goes_on_as_if_nothing_had_happened(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    sampling = {"temperature": 0.8, "max_tokens": 20, **PENALTIES}
    whole = run(wide, settings, [sequence(wide, "job", PREFIX, **sampling)]).ids["job"]
    for num_recorded in (1, 7, len(whole) - 1):
        resumed = sequence(wide, "job", PREFIX, **sampling)
        resumed.replay(whole[:num_recorded])
        assert run_overlapping(wide, settings, [resumed]).ids["job"] == whole[num_recorded:]


def test_a_prompt_is_found_by_those_that_come_while_it_is_computed(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    """Its pages are published when its step is launched: the device does one thing after the other."""
    first, second = (sequence(wide, name, PREFIX) for name in ("first", "second"))
    expected = run(wide, settings, [sequence(wide, "first", PREFIX)]).ids["first"]
    sink = Collector()
    overlapping = Overlapping(wide, settings.model_copy(update={"prefill_tokens": 1000}), sink)
    engine = overlapping.engine
    engine.submit(first)
    engine.step()
    assert first.num_flying == 1
    engine.submit(second)
    engine.step()
    assert second.pages[:2] == first.pages[:2]
    finish(engine)
    assert sink.ids == {"first": expected, "second": expected}


def test_a_page_of_drawn_ids_is_found_once_they_are_known(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    asked: dict[str, Any] = {"prompt": PREFIX[:60], "max_tokens": 40, "ignore_eos": True}
    expected = run(wide, settings, [sequence(wide, "long", **asked)]).ids["long"]
    overlapping = Overlapping(wide, settings, Collector())
    one = sequence(wide, "long", **asked)
    assert len(one.prompt_ids) < PAGE_TOKENS
    overlapping.engine.submit(one)
    finish(overlapping.engine)
    assert one.ids == expected
    again = sequence(wide, "again", max_tokens=4)
    again.prompt_ids = one.prompt_ids + one.ids[:30]
    overlapping.engine.submit(again)
    overlapping.engine.step()
    assert overlapping.engine.prefixes.num_found_tokens == PAGE_TOKENS
    finish(overlapping.engine)
    assert again.ids == expected[30:34]


def test_a_step_is_launched_before_the_one_before_is_read(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    overlapping = Overlapping(wide, settings, Collector())
    engine, one = overlapping.engine, sequence(wide, "job", max_tokens=5)
    engine.submit(one)
    known = []
    while engine.has_work:
        engine.step()
        known.append((overlapping.device.num_replays, len(one.ids)))
    assert known == [(2, 0), (4, 1), (6, 2), (8, 3), (10, 4), (10, 5)]


def test_what_ends_unforeseen_is_computed_once_more_and_keeps_its_pages_until_then(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    ids = run(wide, settings, [sequence(wide, "job", max_tokens=20, ignore_eos=True)]).ids["job"]
    stop = ids[4]
    expected = ids[: ids.index(stop) + 1]
    sink = Collector()
    overlapping = Overlapping(wide, settings, sink)
    engine, one = overlapping.engine, sequence(wide, "job", max_tokens=20, stop_token_ids=[stop])
    engine.submit(one)
    while not one.finish_reason:
        engine.step()
    assert sink.ids["job"] == expected == one.ids
    assert overlapping.device.num_replays == 2 * (len(expected) + 1), "one more step than was needed"
    assert engine.prefixes.pages.num_held == len(one.pages)
    assert len(engine.scheduler._free_slots) == settings.slots - 1
    engine.step()
    assert overlapping.device.num_replays == 2 * (len(expected) + 1)
    assert engine.prefixes.pages.num_held == 0
    assert len(engine.scheduler._free_slots) == settings.slots
    assert sink.ids["job"] == expected


@pytest.mark.parametrize("num_steps", [1, 2, 3, 6])
def test_a_cancel_is_obeyed_within_two_steps(
    wide: LoadedModel, settings: WorkerSettings, num_steps: int
) -> None:
    sink = Collector()
    overlapping = Overlapping(wide, settings, sink)
    engine, doomed = overlapping.engine, sequence(wide, "doomed", max_tokens=100, ignore_eos=True)
    mate = sequence(wide, "mate", max_tokens=30)
    engine.submit(doomed, mate)
    for _ in range(num_steps):
        engine.step()
    num_ids = len(doomed.ids)
    engine.abort([doomed.info], "cancelled")
    engine.step()
    assert sink.ends["doomed"] == ["cancelled"]
    assert len(sink.ids["doomed"]) == num_ids
    assert doomed.num_flying == 0
    finish(engine)
    assert len(sink.ids["doomed"]) == num_ids
    assert sink.ids["mate"] == run(wide, settings, [sequence(wide, "mate", max_tokens=30)]).ids["mate"]


def test_a_job_may_come_again_while_a_step_of_its_last_attempt_flies(
    wide: LoadedModel, settings: WorkerSettings
) -> None:
    """As one does that was lost to another worker, and is put back at once."""
    sink = Collector()
    engine = Overlapping(wide, settings, sink).engine
    lost, again = (sequence(wide, "job", max_tokens=20) for _ in range(2))
    engine.submit(lost)
    while not lost.ids:
        engine.step()
    engine.abort([lost.info], "dropped")
    engine.submit(again)
    engine.admit()
    assert lost.num_flying
    assert again.pages
    finish(engine)
    assert again.ids == run(wide, settings, [sequence(wide, "job", max_tokens=20)]).ids["job"]


def test_no_more_sequences_hold_slots_than_there_are(wide: LoadedModel, settings: WorkerSettings) -> None:
    """Also while some that have ended wait for their last step."""
    engine = Overlapping(wide, settings, Collector(), with_layers(wide.llama, 0)).engine
    for one in jobs(wide, *MODES, num_sequences=30):
        engine.submit(one)
    while engine.has_work:
        engine.step()
        held = engine.scheduler.running + list(engine.scheduler._leaving)
        slots = [one.slot for one in held] + engine.scheduler._free_slots
        assert sorted(slots) == list(range(settings.slots))


def test_who_follows_in_a_slot_is_drawn_in_his_own_way(
    shallow: LoadedModel, settings: WorkerSettings
) -> None:
    """With one slot and prompts of one token, each step decodes the same slot."""
    alone = settings.model_copy(update={"slots": 1})

    def followers() -> list[Sequence]:
        asked = [
            {"max_tokens": 4, **mode} | ({"min_tokens": 2} if "min_tokens" in mode else {})
            for mode in MODES.values()
        ]
        jobs = [job_of(one, prompt_ids=(5,)) for one in asked]
        return [
            one for n, job in enumerate(jobs) for one in shallow.maker.sequences(f"job-{n}", job, now_ms=0)
        ]

    assert said(run_overlapping(shallow, alone, followers())) == said(run(shallow, settings, followers()))


def test_a_row_whose_logits_are_no_numbers_fails_alone(wide: LoadedModel, settings: WorkerSettings) -> None:
    prompts = {f"job-{n}": PREFIX + str(n) for n in range(3)}
    reference = run(wide, settings, [sequence(wide, *job) for job in prompts.items()]).ids
    sink = Collector()
    overlapping = Overlapping(wide, settings, sink)
    engine, sequences = overlapping.engine, [sequence(wide, *job) for job in prompts.items()]
    engine.submit(*sequences)
    while not all(len(one.ids) >= 2 for one in sequences):
        engine.step()
    own_page = sequences[1].pages[(sequences[1].length - 1) // PAGE_TOKENS]
    overlapping.cache.storage[:, :, :, own_page] = float("nan")
    finish(engine)
    assert sink.ends["job-1"] == ["error"]
    assert sink.errors == ["numeric_error"]
    assert {name: sink.ids[name] for name in ("job-0", "job-2")} == {
        name: reference[name] for name in ("job-0", "job-2")
    }


@pytest.mark.parametrize("most_rows", [1, 4])
def test_a_forward_without_memory_is_repeated_in_halves_to_the_same_ids(
    wide: LoadedModel,
    settings: WorkerSettings,
    step_by_step: Callable[..., Collector],
    monkeypatch: pytest.MonkeyPatch,
    most_rows: int,
) -> None:
    """Be it a graph of rows alone, or of prompts too."""
    whole = said(step_by_step(*FEW, seed=3, num_sequences=7))
    forward, num_failures = StepGraphs.forward, 0

    def narrow(self: StepGraphs, num_rows: int, num_tokens: int) -> Replay:
        nonlocal num_failures
        if num_rows > most_rows:
            num_failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, num_rows, num_tokens)

    monkeypatch.setattr(StepGraphs, "forward", narrow)
    assert said(run_overlapping(wide, settings, jobs(wide, *FEW, seed=3, num_sequences=7))) == whole
    assert num_failures


def test_a_draw_that_broke_off_leaves_the_slots_as_they_were(
    shallow: LoadedModel,
    settings: WorkerSettings,
    step_by_step: Callable[..., Collector],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from llama_herd.worker.engine.slot_runner import SlotRunner

    whole, num_failures = SlotRunner._draw_apart, 0

    def breaks_off(self: SlotRunner, *asked: Any) -> Any:
        nonlocal num_failures
        found = whole(self, *asked)
        if len(asked[0]) > 1:
            num_failures += 1
            raise RuntimeError("broken")
        return found

    monkeypatch.setattr(SlotRunner, "_draw_apart", breaks_off)
    sink = run_overlapping(shallow, settings, jobs(shallow, *FEW, seed=3, num_sequences=7))
    assert said(sink) == said(step_by_step(*FEW, seed=3, num_sequences=7, is_shallow=True))
    assert num_failures > 5


def test_what_cannot_be_captured_is_computed_kernel_by_kernel(
    shallow: LoadedModel,
    settings: WorkerSettings,
    step_by_step: Callable[..., Collector],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Collector()
    overlapping = Overlapping(shallow, settings, sink)

    def refuse(work: Callable[[], None]) -> Callable[[], None]:
        work()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(overlapping.device, "capture", refuse)
    overlapping.engine.submit(*jobs(shallow, *MODES))
    finish(overlapping.engine)
    assert said(sink) == said(step_by_step(*MODES, is_shallow=True))
    assert overlapping.device.num_replays == 0
    assert "not permitted" in overlapping.runner.graphs.complaint


def test_a_batch_that_failed_leaves_nothing_behind(wide: LoadedModel, settings: WorkerSettings) -> None:
    from llama_herd.tasks.protocol.events import Failure

    sink = Collector()
    engine = Overlapping(wide, settings, sink).engine
    engine.submit(*jobs(wide, "plain", num_sequences=8))
    for _ in range(3):
        engine.step()
    engine.fail_running(Failure(code="model_error", message="broken"))
    finish(engine)
    assert sorted(len(ends) for ends in sink.ends.values()) == [1] * 8
