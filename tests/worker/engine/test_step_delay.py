"""A step is put off for a small part of one, and only if more is computed in it then."""

from typing import Any

import pytest

from benchmarks.simulated_card import PIECES, Costs, OverlappingRunner, SimulatedEngine, SimulatedRunner
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.step_delay import (
    ARRIVAL_STEPS,
    CONFIRM_STEPS,
    CONFIRM_STEPS_IN_FLIGHT,
    StepDelay,
)

STEP_S = 1.0
#: Of steps that take as long, whatever is in them.
COSTS = Costs(step_s=STEP_S, row_s=0, cached_token_s=0, prompt_s=0, prompt_token_s=0)


class Desk:
    """A delay on a clock that the test moves; a step takes a second."""

    def __init__(self) -> None:
        self.now_s = 100.0
        prefill = PrefillBudget(16)
        prefill.note(0, 1, STEP_S)
        self.delay = StepDelay(prefill, lambda: self.now_s)

    def left_s(self, *, is_in_flight: bool = False, may_gather: bool = False) -> float:
        return self.delay.left_s(is_in_flight=is_in_flight, may_gather=lambda: may_gather)

    def begin(self, job_id: str, record_s: float | None = None) -> Sequence:
        """Admit a job. Its start is recorded after this time, if any."""
        params = SamplingParams(max_tokens=4)
        one = Sequence(job_id, [1], params, 1, 64, frozenset(), Detokenizer([b"x"] * 2))
        one.is_confirmed = False
        self.delay.note_begun(one)
        if record_s is not None:
            self.delay.note_confirmed(one, self.now_s + record_s)
        return one


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize(("is_in_flight", "steps"), [(False, CONFIRM_STEPS), (True, CONFIRM_STEPS_IN_FLIGHT)])
def test_a_start_is_awaited_until_it_is_on_record(desk: Desk, is_in_flight: bool, steps: float) -> None:
    first, second = desk.begin("first"), desk.begin("second")
    assert desk.left_s(is_in_flight=is_in_flight) == pytest.approx(steps * STEP_S)
    desk.delay.note_confirmed(first, desk.now_s)
    assert desk.left_s(is_in_flight=is_in_flight) == pytest.approx(steps * STEP_S)
    desk.delay.note_confirmed(second, desk.now_s)
    assert not desk.left_s(is_in_flight=is_in_flight)


def test_all_starts_of_a_step_are_awaited_no_longer_than_one(desk: Desk) -> None:
    begun_s = desk.now_s
    for number in range(8):
        desk.begin(str(number))
        desk.now_s += desk.left_s() / 2
    assert desk.now_s < begun_s + CONFIRM_STEPS * STEP_S
    desk.now_s = begun_s + CONFIRM_STEPS * STEP_S
    assert desk.left_s() == pytest.approx(0, abs=1e-9)
    desk.delay.note_step()
    desk.begin("of the next step")
    assert desk.left_s() == pytest.approx(CONFIRM_STEPS * STEP_S)


def test_slow_starts_are_not_awaited_until_one_is_quick_again(desk: Desk) -> None:
    desk.begin("slow", record_s=0.5 * STEP_S)
    desk.begin("next")
    assert not desk.left_s()
    assert desk.left_s(is_in_flight=True), "a step in flight lasts longer than that"
    desk.delay.note_step()
    desk.begin("quick", record_s=0.01 * STEP_S)
    desk.begin("last")
    assert desk.left_s()


def test_one_that_has_ended_is_not_awaited(desk: Desk) -> None:
    desk.delay.note_removed(desk.begin("cancelled"))
    assert not desk.left_s()


@pytest.mark.parametrize("asked", [{"is_in_flight": True, "may_gather": True}, {"may_gather": False}])
def test_jobs_that_arrive_together_are_awaited_where_no_stream_waits_for_them(
    desk: Desk, asked: dict[str, Any]
) -> None:
    desk.delay.note_arrival(is_idle=True)
    assert desk.left_s(may_gather=True) == pytest.approx(ARRIVAL_STEPS * STEP_S)
    assert not desk.left_s(**asked)
    for _ in range(20):
        desk.now_s += 0.9 * ARRIVAL_STEPS * STEP_S
        desk.delay.note_arrival(is_idle=False)
    assert not desk.left_s(may_gather=True), "that is more than a step"


@pytest.mark.parametrize(("record_steps", "num_steps"), [(0.05, 2), (0.5, 3)])
def test_a_job_beside_streams_loses_no_step_if_its_start_is_recorded_soon(
    record_steps: float, num_steps: int
) -> None:
    """It comes while a step runs, and the next one is its own: the engine's thread on a made-up clock."""
    runner = SimulatedRunner(COSTS)
    one = SimulatedEngine(runner, num_rows=4, most_tokens=64, prefill=PrefillBudget(16))
    engine = one.engine
    one.submit("stream", [1], 40)
    one.step(3)
    one.begun.clear()
    for name in ("teaches what a start takes", "is timed"):
        one.submit(name, [2], 20, is_confirmed=False)
        engine.admit()
        (begun_s, info), *_ = one.begun
        one.begun.clear()
        recorded_s, came_s = begun_s + record_steps * STEP_S, runner.now_s - STEP_S / 2
        runner.now_s = min(runner.now_s + engine.delay_s, recorded_s)
        while name not in one.drawn_s:
            if runner.now_s >= recorded_s:
                engine.confirm([info], recorded_s)
            engine.step()
    took_s = one.drawn_s["is timed"][0] - came_s
    assert took_s == pytest.approx((num_steps - 1 / 2) * STEP_S, abs=0.1 * STEP_S)


def test_where_steps_overlap_a_job_waits_for_the_one_in_flight_too() -> None:
    """As those of a simulated card do."""
    runner = OverlappingRunner(COSTS)
    one = SimulatedEngine(runner, num_rows=4, most_tokens=64, prefill=PrefillBudget(16))
    one.submit("stream", [1], 40)
    one.step(3)
    came_s = runner.now_s
    one.submit("job", [2], 20)
    while "job" not in one.drawn_s:
        one.step(1)
    assert one.drawn_s["job"][0] - came_s == pytest.approx(2 * STEP_S)


def test_outputs_that_wait_for_their_prompt_say_nothing_of_how_long_a_start_takes() -> None:
    """The first one computes it, and the start of all of them is recorded once."""
    runner = SimulatedRunner(COSTS)
    one = SimulatedEngine(runner, num_rows=4, most_tokens=64, prefill=PrefillBudget(16))
    engine, params = one.engine, SamplingParams(max_tokens=20, n=2)
    one.submit("stream", [1], 40)
    one.step(3)
    outputs = [
        Sequence("several", [2, 3], params, 1, 64, frozenset(), Detokenizer(PIECES), choice=choice)
        for choice in range(params.n)
    ]
    for output in outputs:
        output.is_confirmed = False
    engine.submit(*outputs)
    engine.admit()
    engine.confirm([output.info for output in outputs])
    assert [output.has_begun for output in outputs] == [True, False]
    one.step(1)
    one.submit("next", [4], 20, is_confirmed=False)
    engine.admit()
    assert engine.delay_s == pytest.approx(CONFIRM_STEPS * STEP_S)
