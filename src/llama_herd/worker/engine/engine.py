"""The engine: one model, one cache, one batch that sequences join and leave at any step."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence as Rows
from math import inf
from time import monotonic
from typing import NamedTuple

import structlog

from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.protocol.events import Failure
from llama_herd.worker.engine.device_error import is_lack_of_memory, raise_if_lost
from llama_herd.worker.engine.figures import EngineStats, StepFigures
from llama_herd.worker.engine.interface import (
    Abort,
    Admitted,
    Displaced,
    Finished,
    NewTokens,
    NewVector,
    PromptScores,
    SampledToken,
    SequenceInfo,
    Sink,
    StepOutput,
)
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.runner import (
    PartReading,
    Read,
    Reading,
    Row,
    Runner,
    TokenReading,
    VectorReading,
)
from llama_herd.worker.engine.sampling.row import NO_TOKEN
from llama_herd.worker.engine.scheduler import Scheduler
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.size_limits import SizeLimits
from llama_herd.worker.engine.step_delay import StepDelay
from llama_herd.worker.engine.step_failures import (
    MEMORY_ERROR,
    NOTHING_FOLLOWS,
    NUMERIC_ERROR,
    VECTOR_ERROR,
    failure_of,
)

log = structlog.get_logger(__name__)


class Flight(NamedTuple):
    """A forward that is launched, and was not read yet."""

    rows: Rows[Row]
    read: Read
    launched_s: float


class Engine:
    """Runs sequences to their end; one thread calls it.

        runner = ModelRunner(llama, cache)
        engine = Engine(runner, cache.prefixes, max_rows=32, prefill=PrefillBudget(1024), sink=print)
        engine.submit(sequence)
        while engine.has_work:
            engine.step()

    `sink` gets lists of outputs: first the admitted sequences, before their prompts are computed, then the
    tokens and vectors that the step found, or the step before where the runner lets steps overlap.
    """

    def __init__(
        self,
        runner: Runner,
        prefixes: PrefixCache,
        *,
        max_rows: int,
        prefill: PrefillBudget,
        sink: Sink,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock`: seconds, as of time.monotonic."""
        self.runner = runner
        self.prefixes = prefixes
        self.scheduler = Scheduler(prefixes, max_rows=max_rows, prefill=prefill)
        self._sink = sink
        self.clock = clock
        self._sequences: dict[SequenceInfo, Sequence] = {}  # those that have not ended
        self._aborts: dict[SequenceInfo, Abort] = {}  # those of them that the next step ends
        self._next_deadline_s = inf  # none of them is overdue before
        self._flights: deque[Flight] = deque()
        self._read_s = 0.0  # when a forward was read last
        self._size_limits = SizeLimits()
        self._delay = StepDelay(prefill, clock)
        self._num_steps = self._num_recomputed_tokens = 0
        self._figures = StepFigures()

    @property
    def has_work(self) -> bool:
        return bool(self._flights) or self.scheduler.has_work

    @property
    def delay_s(self) -> float:
        """The seconds by which to put off the next step, so that more is computed in it."""
        if not self._sequences:
            return 0.0
        return self._delay.left_s(
            is_in_flight=bool(self._flights), may_gather=lambda: self.scheduler.may_gather
        )

    def submit(self, *sequences: Sequence) -> None:
        """Take sequences. From now on no other thread may touch them."""
        self._delay.note_arrival(is_idle=not self._sequences)
        for sequence in sequences:
            self._sequences[sequence.info] = sequence
            self._note_deadline(sequence)
            self.scheduler.submit(sequence)

    def confirm(self, infos: Iterable[SequenceInfo], at_s: float | None = None) -> None:
        """Note that the start of these sequences is on record, since `at_s`: now they may be computed."""
        for info in infos:
            if sequence := self._sequences.get(info):
                sequence.is_confirmed = True
                if sequence.has_begun:  # other outputs of its job may not
                    self._delay.note_confirmed(sequence, self.clock() if at_s is None else at_s)

    def abort(self, infos: Iterable[SequenceInfo], reason: Abort) -> None:
        """End sequences at the next step; `dropped` ends them without an output. The first reason stays."""
        for info in infos:
            if info in self._sequences:
                self._aborts.setdefault(info, reason)

    def admit(self) -> None:
        """Admit what there is room for, and announce it: it can be computed once its start is confirmed.

        Before that end what is cancelled or overdue. An error ends all outputs of its job that are admitted
        now: they may take over what was never copied.
        """
        self._end_aborted()
        admitted = self.scheduler.admit()
        outputs: list[StepOutput] = [Displaced(one.info) for one in self.scheduler.take_left()]
        failed = dict[tuple[str, str], Failure]()  # jobs
        for sequence in admitted:
            failure = failed.get(sequence.job) or self._copy_pages(sequence)
            if failure is not None:
                failed[sequence.job] = failure
                outputs.append(self._failed(sequence, failure))
            elif sequence.has_begun:  # it goes on where it had lost its place
                self._num_recomputed_tokens += max(0, sequence.length - 1 - sequence.num_cached)
            else:
                outputs.append(self._begin(sequence))
        self._hand_on(outputs)

    def step(self) -> None:
        """End cancelled and overdue sequences, admit, prefill and decode in one forward, draw, hand on.

        A runner that lets steps overlap computes this one while the step before is read.
        """
        num_before = len(self._flights)
        self.admit()
        self._delay.note_step()
        self._compute(self.scheduler.next_batch())
        for _ in range(num_before):
            self._read(self._flights.popleft())
        self._num_steps += 1

    @property
    def stats(self) -> EngineStats:
        """The engine's figures at this moment; only its own thread may ask."""
        pages, prefixes = self.prefixes.pages, self.prefixes
        return EngineStats(
            num_steps=self._num_steps,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_preemptions=self.scheduler.num_preemptions,
            num_recomputed_tokens=self._num_recomputed_tokens,
            has_work=self.has_work,
            kv_cache_usage=pages.num_held / pages.num_pages,
            num_prefix_tokens=prefixes.num_found_tokens,
            num_prefix_queries=prefixes.num_queried_tokens,
            steps=self._figures,
        )

    def count_anew(self) -> None:
        """Forget what all forwards have computed; only the figures change."""
        self._figures = StepFigures()

    def fail_running(self, error: Failure) -> None:
        """End every running sequence with an error; those that wait are untouched."""
        self._hand_on([self._failed(sequence, error) for sequence in list(self.scheduler.running)])

    def _end_aborted(self) -> None:
        self._abort_overdue()
        aborts, self._aborts = self._aborts, {}
        outputs = list[StepOutput]()
        for info, reason in aborts.items():
            if (sequence := self._sequences.get(info)) is not None:
                self._remove(sequence)
                if reason != "dropped":
                    outputs.append(Finished(info, reason))
        self._hand_on(outputs)

    def _abort_overdue(self) -> None:
        """Looks at all sequences only when a deadline has passed: many may wait."""
        if monotonic() < self._next_deadline_s:
            return
        self.abort([one.info for one in self._sequences.values() if one.is_overdue], "deadline")
        left = (one.deadline_s for one in self._sequences.values() if one.info not in self._aborts)
        self._next_deadline_s = min((one for one in left if one is not None), default=inf)

    def _note_deadline(self, sequence: Sequence) -> None:
        if sequence.deadline_s is not None:
            self._next_deadline_s = min(self._next_deadline_s, sequence.deadline_s)

    def _copy_pages(self, sequence: Sequence) -> Failure | None:
        """Copy the pages that a sequence takes over; return why that failed."""
        try:
            self.runner.begin(sequence)
        except Exception as error:
            raise_if_lost(error)
            log.exception("row failed", **sequence.line)
            return failure_of(error)
        return None

    def _begin(self, sequence: Sequence) -> Admitted:
        sequence.has_begun = True
        sequence.note_admitted()
        self._delay.note_begun(sequence)
        self._note_deadline(sequence)
        if sequence.choice == 0 or sequence.vector is not None:  # other outputs share a prompt
            self._figures = self._figures.with_prompt(len(sequence.prompt_ids))
        num_cached = min(sequence.num_cached, len(sequence.prompt_ids))  # it may have recorded ids, too
        return Admitted(sequence.info, num_cached)

    def _compute(self, rows: Rows[Row]) -> None:
        """Run rows in one forward. If it fails, run each half by itself: only a row that fails alone ends.

        A forward that is known to be too large for the memory is halved at once. Raises
        DeviceLost when this process has lost the device.
        """
        if not rows:
            return
        failure = self._run(rows) if self._size_limits.allow(rows) else MEMORY_ERROR
        if failure is not None and len(rows) == 1:
            self._hand_on([self._failed(rows[0].sequence, failure)])
        elif failure is not None:
            middle = len(rows) // 2
            self._compute(rows[:middle])
            self._compute(rows[middle:])

    def _run(self, rows: Rows[Row]) -> Failure | None:
        """Launch one forward, and read it unless steps overlap.

        Returns why it failed, once all of its memory is free.
        """
        launched_s = self.clock()
        try:
            read = self.runner.launch(rows)
        except Exception as error:
            raise_if_lost(error)
            if len(rows) == 1:
                log.exception("row failed", **rows[0].sequence.line)
            elif is_lack_of_memory(error):
                self._size_limits.note_lack(rows)
                log.warning("forward ran out of memory, splitting its rows", num_rows=len(rows))
            return failure_of(error)
        self._size_limits.note_run()
        for row in rows:
            self.scheduler.note_computed(row)
        flight = Flight(rows, read, launched_s)
        if self.runner.overlaps:
            self._flights.append(flight)
        else:
            self._read(flight)
        return None

    def _read(self, flight: Flight) -> None:
        """Hand on what a forward has found for those of its sequences that have not ended since."""
        try:
            readings = flight.read()
        finally:
            for row in flight.rows:
                self.scheduler.note_read(row)
        alive = [one for one in readings if one.row.sequence.info in self._sequences]
        self._note_forward(alive, flight.launched_s)
        self._hand_on([output for reading in alive for output in self._advance_alone(reading)])

    def _note_forward(self, readings: Rows[Reading], launched_s: float) -> None:
        """Note what a forward has computed, in what time: the device began it after the one before."""
        now_s = self.clock()
        started_s, self._read_s = max(launched_s, self._read_s), now_s
        num_decoding = sum(reading.row.decodes for reading in readings)
        num_tokens = sum(reading.row.num_tokens for reading in readings)
        self.scheduler.prefill.note(num_tokens - num_decoding, num_decoding, now_s - started_s)
        drawing = (one for one in readings if isinstance(one, TokenReading) and one.token is not None)
        drawn = [one.row.sequence for one in drawing]
        gaps_s = [now_s - one.drawn_s for one in drawn if one.drawn_s is not None]
        for one in drawn:
            one.drawn_s = now_s
        self._figures = self._figures.with_forward(
            len(readings),
            num_tokens,
            now_s - started_s,
            len(drawn),
            gaps_s,
            sum(one.constraint is not None for one in drawn),
        )

    def _advance_alone(self, reading: Reading) -> list[StepOutput]:
        """Do as `_advance` does, but let an error end this sequence alone."""
        sequence = reading.row.sequence
        try:
            return self._advance(reading)
        except Exception as error:
            log.exception("row failed", **sequence.line)
            return [self._failed(sequence, failure_of(error))]

    def _advance(self, reading: Reading) -> list[StepOutput]:
        """Update a row's sequence with what was computed; return the outputs."""
        sequence = reading.row.sequence
        match reading:
            case TokenReading():
                sequence.prompt_scores += reading.prompt_scores
                return [] if reading.token is None else self._continue(sequence, reading.token)
            case PartReading():
                sequence.pooled = reading.pooled
                return []
            case VectorReading():
                return self._end_text(sequence, reading.vector)

    def _end_text(self, sequence: Sequence, vector: bytes | None) -> list[StepOutput]:
        if vector is None:
            return [self._failed(sequence, VECTOR_ERROR)]
        self._remove(sequence)
        return [NewVector(sequence.info, vector), Finished(sequence.info, "stop")]

    def _continue(self, sequence: Sequence, token: SampledToken) -> list[StepOutput]:
        """Add a drawn token, unless the sequence is to have none."""
        if token.token_id == NO_TOKEN:
            if sequence.constraint is not None:
                sequence.constraint.check()
                return [self._failed(sequence, NOTHING_FOLLOWS)]
            return [self._failed(sequence, NUMERIC_ERROR)]
        outputs = list[StepOutput]()
        if sequence.scores_prompt:
            outputs.append(PromptScores(sequence.info, tuple(sequence.prompt_scores)))
        if sequence.params.max_tokens:
            outputs.append(NewTokens(sequence.info, (token,), sequence.append(token.token_id)))
        else:
            sequence.end_without_output()
        self.scheduler.publish(sequence)
        if sequence.finish_reason:
            self._remove(sequence)
            outputs.append(Finished(sequence.info, sequence.finish_reason, sequence.stop_reason))
        return outputs

    def _failed(self, sequence: Sequence, error: Failure) -> StepOutput:
        """End one sequence; its computed pages may not serve others."""
        self._remove(sequence, is_sound=False)
        return Finished(sequence.info, "error", error=error)

    def _remove(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        self._sequences.pop(sequence.info, None)
        self._delay.note_removed(sequence)
        self.scheduler.remove(sequence, is_sound=is_sound)

    def _hand_on(self, outputs: list[StepOutput]) -> None:
        if outputs:
            self._sink(outputs)
