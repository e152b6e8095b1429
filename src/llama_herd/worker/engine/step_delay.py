"""StepDelay: for how long the next step is put off, so that more is computed in it."""

from collections.abc import Callable

from llama_herd.worker.engine.interface import SequenceInfo
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import Sequence

#: For how much of a step an idle engine expects another job after each that arrives.
ARRIVAL_STEPS = 1 / 8

#: For how much of a step at most the starts of new jobs are awaited; and where the device computes meanwhile.
CONFIRM_STEPS, CONFIRM_STEPS_IN_FLIGHT = 1 / 16, 1 / 2


class StepDelay:
    """Two reasons to put a step off, each for a small part of a step without prompts.

    *Jobs that arrive together* with the first at an idle engine come one by one. Their prompts are computed
    together: beside streams few of their tokens would fit into a step. An engine that had nothing to do waits
    after each arrival, for a step in all.

    *Starts that are not on record yet* when their jobs are admitted beside streams. Each would lose the step
    that begins meanwhile. It does so if the last start took longer to be recorded than this one may.
    """

    def __init__(self, prefill: PrefillBudget, clock: Callable[[], float]) -> None:
        self._prefill = prefill
        self._clock = clock
        self._arrives_until_s = self._gathers_until_s = 0.0
        self._starting: set[SequenceInfo] = set()  # admitted since the last step, and not confirmed
        self._starting_since_s = 0.0
        self._confirm_s = 0.0  # what the last start took to be on record

    def note_arrival(self, *, is_idle: bool) -> None:
        """Jobs have arrived; `is_idle`: at an engine without any."""
        now_s, step_s = self._clock(), self._prefill.decode_s
        if is_idle:
            self._gathers_until_s = now_s + step_s
        self._arrives_until_s = now_s + ARRIVAL_STEPS * step_s

    def note_begun(self, sequence: Sequence) -> None:
        """A sequence is admitted for the first time."""
        sequence.begun_s = self._clock()
        if not sequence.is_confirmed:
            self._starting_since_s = self._starting_since_s if self._starting else sequence.begun_s
            self._starting.add(sequence.info)

    def note_confirmed(self, sequence: Sequence, at_s: float) -> None:
        """Its start was on record at this time."""
        self._starting.discard(sequence.info)
        self._confirm_s = at_s - sequence.begun_s

    def note_removed(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._starting.discard(sequence.info)

    def note_step(self) -> None:
        """A step begins: what is not confirmed by now has lost it."""
        self._starting.clear()

    def left_s(self, *, is_in_flight: bool, may_gather: Callable[[], bool]) -> float:
        """The seconds that are left. `may_gather`: whether more prompts could join it for nothing."""
        now_s, left_s = self._clock(), 0.0
        if self._starting:
            steps = CONFIRM_STEPS_IN_FLIGHT if is_in_flight else CONFIRM_STEPS
            most_s = steps * self._prefill.decode_s
            if self._confirm_s <= most_s:
                left_s = self._starting_since_s + most_s - now_s
        gathers_s = min(self._arrives_until_s, self._gathers_until_s) - now_s
        if gathers_s > left_s and not is_in_flight and may_gather():
            left_s = gathers_s
        return max(0.0, left_s)
