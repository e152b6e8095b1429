"""An engine without a model: each sequence gets the tokens that it was made with, one a step."""

from collections.abc import Iterable, Sequence as Ids

from llama_herd.worker.engine.interface import (
    Abort,
    EngineStats,
    SampledToken,
    SequenceInfo,
    Sink,
    StepFigures,
    StepOutput,
)
from llama_herd.worker.engine.sequence import Sequence


class FakeEngine:
    """It has no thread: whoever started it calls `step`."""

    def __init__(self, sink: Sink, ids: Ids[int]) -> None:
        self._sink = sink
        self._ids = ids
        self._sequences: dict[SequenceInfo, Sequence] = {}
        self._is_running = False
        self._num_steps = 0
        self._figures = StepFigures()

    @property
    def stats(self) -> EngineStats:
        num = len(self._sequences)
        return EngineStats(self._num_steps, num_running=num, has_work=num > 0, steps=self._figures)

    @property
    def num_waiting(self) -> int:
        return 0

    def is_stalled(self, stall_s: float) -> bool:
        return False

    def is_alive(self) -> bool:
        return self._is_running

    def submit(self, *sequences: Sequence) -> None:
        self._sequences |= {one.info: one for one in sequences}
        self._sink([StepOutput(one.info, has_started=True) for one in sequences])

    def confirm(self, infos: Iterable[SequenceInfo]) -> None:
        for info in infos:
            self._sequences[info].is_confirmed = True

    def abort(self, infos: Iterable[SequenceInfo], reason: Abort) -> None:
        for info in infos:
            if sequence := self._sequences.get(info):
                sequence.abort = sequence.abort or reason

    def count_anew(self) -> None:
        self._figures = StepFigures()

    def start(self) -> None:
        self._is_running = True

    def stop(self) -> None:
        self._is_running = False

    def step(self) -> None:
        """End what was aborted, and take one token more for each sequence that is confirmed."""
        self._num_steps += 1
        outputs = []
        for sequence in list(self._sequences.values()):
            if sequence.abort != "dropped" and (sequence.abort or sequence.is_confirmed):
                outputs.append(self._output(sequence))
            if sequence.abort or sequence.finish_reason:
                del self._sequences[sequence.info]
        self._sink(outputs)

    def _output(self, sequence: Sequence) -> StepOutput:
        if sequence.abort and sequence.abort != "dropped":
            return StepOutput(sequence.info, finish_reason=sequence.abort)
        token_id = self._ids[len(sequence.ids)]
        text = sequence.append(token_id)
        self._figures = self._figures.with_forward(1, 1, 0.0, 1, [])
        return StepOutput(
            sequence.info, (SampledToken(token_id),), text, finish_reason=sequence.finish_reason
        )
