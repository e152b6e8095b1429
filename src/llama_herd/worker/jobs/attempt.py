"""One try at running a job: its claim, its sequences in the engine, its stream, its messages to settle."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.ledger import SOUND_MS, SOUND_TOKENS
from llama_herd.tasks.protocol.events import GOOD_ENDS, Failure, FinishReason, StopReason, Timings
from llama_herd.tasks.protocol.job import seed_of
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.engine.interface import (
    Abort,
    Admitted,
    Displaced,
    Finished,
    NewTokens,
    NewVector,
    PromptScores,
    SequenceInfo,
    StepOutput,
)
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.jobs.event_log import EventLog
from llama_herd.worker.jobs.retries import NO_RETRIES, Retries
from llama_herd.worker.loading.sequence_maker import EchoedPrompt

#: A job that has waited this long for room is worth a round trip to another worker.
PATIENCE_S = 1.0


@dataclass(eq=False, slots=True)
class Attempt:
    """A claimed job in this worker: its stream, messages, sequences, times, and how it ended."""

    stream: EventLog
    deliveries: list[Delivery]
    sequences: Rows[SequenceInfo] = ()  # one per output, or text; none: the job cannot be run, only ended
    is_last: bool = False  # if this worker dies of it too, the job is given up
    urgency: int = 0  # 1: its message was in the urgent lane, -1: in the low one
    trace_id: str | None = None
    waited_s: float = 0.0  # from submission to claim, by Redis's clock
    claimed_s: float = field(default_factory=monotonic)
    started_s: float | None = field(init=False, default=None)
    first_token_s: float | None = field(init=False, default=None)
    abort: Abort | None = None  # why it must end early; may be set before it has sequences
    deadline_s: float | None = None  # on the clock of time.monotonic
    emitted_s: float = field(init=False, default=-inf)  # then or later an event of it renewed its lease
    num_preemptions: int = field(init=False, default=0)  # how often a more urgent one took its place
    is_preempted: bool = field(init=False, default=False)  # it has no place now
    retries: Retries = field(init=False, default=NO_RETRIES)  # until the job is read
    failure: Failure | None = field(init=False, default=None)  # the error for which the job is to be put back
    reasons: dict[int, FinishReason] = field(init=False, default_factory=dict)  # of outputs that have ended
    has_ended: bool = field(init=False, default=False)
    outcome: str = field(init=False, default="")  # once it has ended: its finish reason or error code
    is_cut_short: bool = field(init=False, default=False)  # Redis refused an event: only a short end is sent
    is_over: bool = field(init=False, default=False)  # the job is no longer this worker's business

    @property
    def job_id(self) -> str:
        return self.stream.job_id

    @property
    def tenant(self) -> str:
        return self.stream.author.tenant

    @property
    def line(self) -> dict[str, object]:
        """The fields of each line of the log about this job."""
        return self.stream.author.line(self.job_id, self.stream.attempt, self.trace_id)

    @property
    def seed(self) -> int:
        return self.sequences[0].seed if self.sequences else seed_of(self.job_id)

    @property
    def num_prompt_tokens(self) -> int | None:
        """Tokens of the prompt, which all outputs share, or of all texts."""
        counted = self.sequences[:1] if self.stream.num_texts is None else self.sequences
        return sum(one.num_prompt_tokens for one in counted) if self.sequences else None

    @property
    def unended(self) -> list[SequenceInfo]:
        """The sequences whose outputs have not ended by themselves, as far as is known here."""
        return [one for one in self.sequences if one.choice not in self.reasons]

    @property
    def is_sound(self) -> bool:
        """Whether the attempt has come so far that earlier deaths no longer count against its job."""
        if self.first_token_s is None or self.started_s is None:
            return False
        return self.stream.num_new_ids >= SOUND_TOKENS or 1000 * (monotonic() - self.started_s) >= SOUND_MS

    @property
    def waits_for_room(self) -> bool:
        """Whether the job could run, but has waited for room for too long."""
        has_waited = monotonic() - self.claimed_s > PATIENCE_S
        may_run = not (self.is_last or self.has_ended or self.started_s)
        return has_waited and may_run and bool(not self.sequences or self.unended)

    def let_go(self) -> None:
        """Give the messages up: the job is another worker's now."""
        for delivery in self.deliveries:
            delivery.let_go()

    def acknowledge(self) -> None:
        """Acknowledge the messages: the job was released, and has a new one in its queue."""
        for delivery in self.deliveries:
            delivery.acknowledge()

    def take(self, sequences: Rows[Sequence], prompt: EchoedPrompt | None) -> None:
        """Note the sequences that were made of the job, and the prompt that its start is to tell."""
        first, stream, num = sequences[0], self.stream, len(sequences)
        if first.vector is not None:
            stream.num_texts = num
        else:
            stream.num_choices = num
        if first.new_parser is not None:
            stream.read_outputs(first.new_parser)
        stream.prompt = prompt
        self.reasons = {one.choice: one.finish_reason for one in sequences if one.finish_reason}
        self.sequences = [one.info for one in sequences]

    def ended(self, sequences: Rows[Sequence]) -> list[StepOutput]:
        """What is to be recorded if all sequences have ended before the engine gets any.

        Such a job has a start all the same.
        """
        first = sequences[0]
        if first.finish_reason is None or len(self.reasons) < len(sequences):
            return []
        end = Finished(first.info, first.finish_reason, first.stop_reason)
        return [end] if self.stream.is_continued else [Admitted(first.info), end]

    def record(self, output: StepOutput) -> list[EmitEntry]:
        """The events to send at once for an output of the engine; its tokens are gathered in the stream."""
        if self.has_ended:
            return []
        match output:
            case NewTokens() | NewVector():
                self.is_preempted = False
                self.first_token_s = self.first_token_s or monotonic()
                self.stream.add(output)
            case PromptScores():
                self.stream.add(output)
            case Finished():
                return self._finish(output)
            case Admitted() if self.started_s is None:
                return [self._start(output.num_cached)]
            case Displaced():
                self.num_preemptions += not self.is_preempted  # all its outputs leave together
                self.is_preempted = True
        return []

    def _finish(self, finished: Finished) -> list[EmitEntry]:
        """The first output that fails or is stopped ends the job, else the last: then its last events."""
        reason, choice = finished.finish_reason, finished.sequence.choice
        if reason in GOOD_ENDS:
            if choice not in self.reasons:  # else it had ended before this attempt
                self.stream.end_output(choice, reason, finished.stop_reason)
            self.reasons[choice] = reason
            if len(self.reasons) < len(self.sequences):
                return []
            reason = "length" if "length" in self.reasons.values() else "stop"
        return self.close(reason, finished.error, finished.stop_reason)

    def close(
        self, finish_reason: FinishReason, error: Failure | None = None, stop_reason: StopReason = None
    ) -> list[EmitEntry]:
        """The last events of the job; if it is to be tried again after `error`, those of this attempt."""
        if error is not None and error.retriable and self.retries.num_left and self.abort is None:
            self.has_ended, self.failure = True, error
            return self.stream.flush()
        return [*self.stream.finish(), self.end(finish_reason, error, stop_reason)]

    def lose(self) -> list[EmitEntry]:
        """The last events of an attempt that its engine has lost; the job goes on by another one."""
        self.has_ended = True
        return self.stream.flush()

    def give_up(self, failure: Failure) -> list[EmitEntry]:
        """The last events of a job that cannot be put back after this."""
        return [*self.stream.finish(), self.end("error", failure)]

    def end(
        self, finish_reason: FinishReason, error: Failure | None = None, stop_reason: StopReason = None
    ) -> EmitEntry:
        """Make the job's final event. Later outputs of the engine are ignored."""
        self.has_ended = True
        self.outcome = error.code if error else finish_reason
        return self.stream.end(finish_reason, self.num_prompt_tokens, self.timings, error, stop_reason)

    def _start(self, num_cached: int | None) -> EmitEntry:
        """Note that the engine has admitted the first sequence; the others take its prompt over."""
        self.started_s = monotonic()
        for delivery in self.deliveries:
            delivery.accept()
        return self.stream.start(self.seed, self.num_prompt_tokens, num_cached)

    @property
    def timings(self) -> Timings:
        """Seconds from the job's submission to each moment that this attempt has seen."""
        return Timings(
            queue_s=self._since_submit(self.started_s),
            ttft_s=self._since_submit(self.first_token_s),
            total_s=self._since_submit(monotonic()),
        )

    def _since_submit(self, moment_s: float | None) -> float | None:
        return None if moment_s is None else round(self.waited_s + moment_s - self.claimed_s, 6)
