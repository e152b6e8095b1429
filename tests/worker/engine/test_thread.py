"""The engine's thread: sleeps without work, survives a broken step, ends what is aborted."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from llama_herd.errors import DeviceLost
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import Admitted, Finished, StepOutput
from llama_herd.worker.engine.scheduler import Scheduler
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.overlapping import Overlapping

TIMEOUT_S = 20.0
NUM_TOKENS = 5
#: Of a step: then jobs are taken to arrive together when less than a minute lies between them.
LONG_STEP_S = 600.0


class Desk:
    """A running thread and what its engine says."""

    def __init__(self, model: LoadedModel, settings: WorkerSettings) -> None:
        self.said: SimpleQueue[StepOutput] = SimpleQueue()
        self.engine = model.engine(settings, self._say)
        self.thread = EngineThread(self.engine)
        self.thread.start()

    def _say(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            self.said.put(output)

    def end(self) -> Finished:
        """The next output that ends a sequence."""
        while True:
            output = self.said.get(timeout=TIMEOUT_S)
            if isinstance(output, Finished):
                return output


@pytest.fixture
def desk(model: LoadedModel, tiny_settings: WorkerSettings) -> Iterator[Desk]:
    desk = Desk(model, tiny_settings)
    yield desk
    desk.thread.stop()


def sequence(model: LoadedModel, job_id: str, max_tokens: int = NUM_TOKENS) -> Sequence:
    job = GenerationJob(prompt="a tale", sampling=SamplingParams(temperature=0, max_tokens=max_tokens))
    made = model.maker.sequences(job_id, job, now_ms=0)[0]
    made.eos_ids = frozenset()
    return made


def test_a_submitted_sequence_wakes_the_thread_and_ends(desk: Desk, model: LoadedModel) -> None:
    desk.thread.submit(sequence(model, "job"))
    assert desk.end().finish_reason == "length"


def test_jobs_that_arrive_together_at_an_idle_engine_have_their_prompts_computed_together(
    desk: Desk, model: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    """The last one takes the last slot, so nothing more is waited for."""
    desk.engine.scheduler.prefill.note(0, 1, LONG_STEP_S)
    for number in range(tiny_settings.slots):
        desk.thread.submit(sequence(model, str(number)))
        assert isinstance(desk.said.get(timeout=TIMEOUT_S), Admitted)
    for _ in range(tiny_settings.slots):
        assert desk.end().finish_reason == "length"
    assert sum(desk.engine.stats.steps.num_rows.counts) == NUM_TOKENS


def test_a_prompt_is_not_put_off_while_a_stream_runs(desk: Desk, model: LoadedModel) -> None:
    engine = desk.engine
    desk.thread.stop()
    engine.scheduler.prefill.note(0, 1, LONG_STEP_S)
    engine.submit(sequence(model, "first"))
    assert 0 < engine.delay_s < LONG_STEP_S
    engine.step()
    assert not engine.delay_s
    engine.submit(sequence(model, "second"))
    assert not engine.delay_s


def test_an_aborted_sequence_ends_with_its_first_reason(
    desk: Desk, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, is_aborted = Llama.forward, threading.Event()

    def held(*args: Any) -> Any:
        """It does not reach its end before it is aborted."""
        is_aborted.wait(TIMEOUT_S)
        return forward(*args)

    monkeypatch.setattr(Llama, "forward", held)
    doomed = sequence(model, "doomed", max_tokens=400)
    desk.thread.submit(doomed)
    assert isinstance(desk.said.get(timeout=TIMEOUT_S), Admitted)
    desk.thread.abort([doomed.info], "cancelled")
    desk.thread.abort([doomed.info], "deadline")
    is_aborted.set()
    assert desk.end().finish_reason == "cancelled"


def test_a_broken_step_ends_its_sequences_with_an_error_and_the_next_job_runs(
    desk: Desk, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Llama, "forward", broken)
        desk.thread.submit(sequence(model, "unlucky"))
        output = desk.end()
    assert output.finish_reason == "error"
    assert output.error is not None
    desk.thread.submit(sequence(model, "lucky"))
    assert desk.end().finish_reason == "length"


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    ],
    ids=str,
)
def test_a_device_that_is_lost_ends_the_thread_and_no_job(
    desk: Desk, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Every later call fails, too: a worker that went on would end job after job with an error."""

    def lost(*_: object) -> None:
        raise error

    ended: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    monkeypatch.setattr(Llama, "forward", lost)
    desk.thread.submit(sequence(model, "job"))
    desk.thread.join(TIMEOUT_S)
    assert [failure.exc_type for failure in ended] == [DeviceLost]
    assert isinstance(desk.said.get_nowait(), Admitted)
    assert desk.said.empty()


def test_a_step_that_fails_with_no_row_to_blame_ends_the_thread_and_no_job(
    desk: Desk, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fail for ever, while the worker looks ready."""

    def broken(*_: object) -> None:
        raise RuntimeError("no page has this name")

    ended: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    monkeypatch.setattr(Scheduler, "admit", broken)
    desk.thread.submit(sequence(model, "job"))
    desk.thread.join(TIMEOUT_S)
    assert [failure.exc_type for failure in ended] == [RuntimeError]
    assert desk.said.empty()


def test_an_idle_thread_is_not_stalled_and_a_standing_one_is(desk: Desk, model: LoadedModel) -> None:
    assert not desk.thread.is_stalled(0.0)
    standing = EngineThread(desk.thread._engine)  # never started: it has work and makes no step
    standing.submit(sequence(model, "job"))
    standing._take_waiting()
    assert standing.is_stalled(-1.0)
    standing._engine.step()


def test_a_step_moves_with_each_layer(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    """A long prompt on a slow machine takes minutes, and is no standstill."""
    thread = EngineThread(model.engine(tiny_settings, lambda _: None))
    thread.submit(sequence(model, "job"))
    thread._take_waiting()
    before_s = thread._moved_s
    thread._engine.step()
    assert thread._moved_s > before_s


def test_where_layers_are_captured_each_step_moves(model: LoadedModel, tiny_settings: WorkerSettings) -> None:
    """Nobody is told of their layers."""
    moved_s, has_ended = list[float](), threading.Event()

    def note(outputs: list[StepOutput]) -> None:
        moved_s.append(thread._moved_s)
        if any(isinstance(output, Finished) for output in outputs):
            has_ended.set()

    thread = EngineThread(Overlapping(model, tiny_settings, note).engine)
    thread.start()
    thread.submit(sequence(model, "job"))
    assert has_ended.wait(TIMEOUT_S)
    thread.stop()
    assert len(moved_s) > NUM_TOKENS
    assert moved_s == sorted(set(moved_s))


@pytest.mark.long
@pytest.mark.usefixtures("restless")
def test_how_it_stands_may_be_asked_at_any_moment(desk: Desk, model: LoadedModel) -> None:
    with ThreadPoolExecutor(2) as others:
        looking = [others.submit(look, desk.thread) for _ in range(2)]
        for number in range(12):
            desk.thread.submit(sequence(model, f"job-{number}"))
        ended = [desk.end() for _ in range(12)]
        desk.thread.stop()
    assert {output.finish_reason for output in ended} == {"length"}
    assert all(max(look.result()) <= 4 for look in looking), "no more than there are slots"
    assert (desk.thread.stats.num_running, desk.thread.num_waiting) == (0, 0)


def test_only_sequences_wait_and_each_counts(desk: Desk, model: LoadedModel) -> None:
    """Not what else is told the engine during a long step."""
    desk.thread.stop()
    first, second = sequence(model, "first"), sequence(model, "second")
    desk.thread.submit(first, second)
    for _ in range(5):
        desk.thread.confirm([first.info])
    assert desk.thread.num_waiting == 2


def look(thread: EngineThread) -> list[int]:
    """How many run, as often as can be asked."""
    seen = [0]
    while thread.is_alive():
        assert not thread.is_stalled(60.0)
        assert thread.num_waiting >= 0
        seen.append(thread.stats.num_running)
    return seen


def test_what_has_not_started_on_record_is_not_computed(desk: Desk, model: LoadedModel) -> None:
    held, free = sequence(model, "held"), sequence(model, "free")
    held.is_confirmed = False
    desk.thread.submit(held)
    assert isinstance(desk.said.get(timeout=TIMEOUT_S), Admitted)
    desk.thread.submit(free)
    assert desk.end().sequence is free.info
    assert held.num_cached == 0
    desk.thread.confirm([held.info])
    assert desk.end().sequence is held.info


def test_what_waits_to_start_on_record_can_be_ended(desk: Desk, model: LoadedModel) -> None:
    held = sequence(model, "held")
    held.is_confirmed = False
    desk.thread.submit(held)
    assert isinstance(desk.said.get(timeout=TIMEOUT_S), Admitted)
    desk.thread.abort([held.info], "cancelled")
    assert desk.end().finish_reason == "cancelled"
