"""Makes the engine's outputs events of their jobs, has them sent, and acts on the ledger's answers."""

import threading
from collections.abc import Callable, Sequence as Rows
from contextlib import suppress
from dataclasses import replace
from math import inf
from queue import Empty, Full, Queue
from time import monotonic
from typing import NamedTuple

import structlog
from redis.exceptions import ResponseError

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.connection.complaint import denied_complaint, is_denied
from llama_herd.tasks.ledger.answers import Emission, Emitted
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.ledger import LOST
from llama_herd.tasks.protocol.events import Failure, FinishReason
from llama_herd.worker.engine.interface import JobEngine, Lost, StepOutput
from llama_herd.worker.insisting import Stopped
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_calls import CallRefused, EventCalls, Outgoing
from llama_herd.worker.jobs.figures import CALLS, JobFigures
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.tenancy import Tenancies

log = structlog.get_logger(__name__)

#: Most steps that wait while Redis is away; then the engine pauses.
MAX_WAITING_STEPS = 1000

#: How long a stopping worker goes on trying.
STOPPING_S = 2.0

#: While calls are slow, tokens are gathered for this many times as long as one takes: Redis is busy.
LAG_FACTOR = 2
#: How long a call takes is the mean of about so many, of which none counts for more than this.
CALLS_OF_LATE, MAX_CALL_S = 5, 0.5

#: What helps a job whose event Redis does not accept.
FEWER = "Fix: ask for fewer logprobs or prompt_logprobs, or raise proto-max-bulk-len in Redis"

#: Of a job that has left, where nothing of it is recorded any more.
GONE = "its record is gone: Redis came back without its data, or somebody deleted it. Fix: see herd doctor"


class RefusedJob(NamedTuple):
    """A job that is ended before it reached the engine."""

    attempt: Attempt
    finish_reason: FinishReason
    error: Failure | None = None


class LeftJob(NamedTuple):
    """A job that this worker has no more: it was released under a new message, or is another worker's."""

    attempt: Attempt
    settle: Callable[[Attempt], None]  # its messages: acknowledged, or let go


#: What other threads tell the publisher.
PublisherInput = StepOutput | RefusedJob | LeftJob


class Publisher(threading.Thread):
    """Writes the streams of the jobs in hand, of all tenants. Other threads call only `put`.

    A job whose start is on record is confirmed to the engine, one whose final event is goes to the finisher.
    The messages of one that turns out to belong to another worker are let go.
    """

    def __init__(
        self,
        tenancies: Tenancies,
        engine: JobEngine,
        finisher: Finisher,
        on_lost: Callable[[Attempt], None] = lambda _: None,
    ) -> None:
        """`on_lost` hears of attempts whose engine has lost them, once their tokens are on record."""
        super().__init__(name="publisher", daemon=True)
        self._on_lost = on_lost
        self._lost: list[Attempt] = []  # of which it is to hear
        self._tenancies = tenancies
        self._calls = EventCalls(tenancies)
        self._engine = engine
        self._finisher = finisher
        self._inbox: Queue[Rows[PublisherInput]] = Queue(MAX_WAITING_STEPS)
        self._gathering: set[Attempt] = set()  # attempts with tokens that are not due yet
        self._failed: dict[Attempt, Failure] = {}  # to be put back once their events are on record
        self._is_stopping = threading.Event()
        self._sending_since_s: float | None = None  # None: nothing is under way
        self._times_s = CALLS  # of all calls
        self._call_s = 0.0  # how long calls take of late

    @property
    def num_answered(self) -> int:
        """Calls that Redis has answered."""
        return self._calls.num_answered

    @property
    def figures(self) -> JobFigures:
        """Counts and times of its calls since the start; jobs have theirs in their tenancies."""
        return JobFigures(call_s=self._times_s, num_repeats=self._calls.num_repeats)

    @property
    def num_waiting(self) -> int:
        """Waiting steps, plus one while a call is under way."""
        return self._inbox.qsize() + (self._sending_since_s is not None)

    @property
    def lag_s(self) -> float:
        """Age of the oldest events that Redis does not have: what waits is younger than what is sent."""
        since_s = self._sending_since_s
        return 0.0 if since_s is None else monotonic() - since_s

    def put(self, outputs: Rows[PublisherInput]) -> None:
        """Queue the outputs of a step; blocks while too many steps wait for Redis."""
        if self._inbox.full():
            log.warning("engine paused until Redis answers", waiting_steps=MAX_WAITING_STEPS)
        self._inbox.put(outputs)

    def stop(self) -> None:
        """Send what waits, then stop; stop trying after STOPPING_S if Redis does not answer."""
        self._calls.give_up_in(STOPPING_S)
        self._is_stopping.set()
        with suppress(Full):  # a full inbox wakes the thread anyway
            self._inbox.put_nowait([])
        self.join()

    def run(self) -> None:
        while not (self._is_stopping.is_set() and self._inbox.empty()):
            self._deliver(self._outgoing(self._take()))
            self._tell_lost()
        self._deliver(self._due(inf))

    def _take(self) -> list[PublisherInput]:
        """Take all outputs that wait. Sleeps until something is put or gathered tokens are due."""
        due_s = min((attempt.stream.due_s for attempt in self._gathering), default=inf)
        taken: list[PublisherInput] = []
        with suppress(Empty):
            taken += self._inbox.get(timeout=None if due_s == inf else max(0.0, due_s - monotonic()))
            while True:
                taken += self._inbox.get_nowait()
        return taken

    def _outgoing(self, outputs: Rows[PublisherInput]) -> list[Outgoing]:
        """The events that are due; a job's tokens of several steps become one event."""
        events: list[Outgoing] = []
        for output in outputs:
            match output:
                case RefusedJob(attempt):
                    events += self._sent_of(attempt, attempt.close(output.finish_reason, output.error))
                    if attempt.failure is None:
                        self._note(attempt, lambda one: replace(one, num_refused=one.num_refused + 1))
                case LeftJob(attempt, settle):
                    self._end(attempt, settle)
                case _:
                    events += self._record(output)
        return events + self._due(monotonic())

    def _due(self, now_s: float) -> list[Outgoing]:
        """The events of gathered tokens that are due."""
        due = [attempt for attempt in self._gathering if attempt.stream.due_s <= now_s]
        self._gathering.difference_update(due)
        lag_s = LAG_FACTOR * self._call_s
        return [(one, entry) for one in due if not one.is_over for entry in one.stream.flush(lag_s)]

    def _record(self, output: StepOutput) -> list[Outgoing]:
        sequence = output.sequence
        attempt = self._tenancies[sequence.tenant].claims.get(sequence.job_id)
        if attempt is None or sequence not in attempt.sequences:
            return []
        if isinstance(output, Lost):
            return self._lose(attempt)
        was_silent = attempt.first_token_s is None and not attempt.stream.num_ids
        entries = attempt.record(output)
        if was_silent and (ttft_s := attempt.timings.ttft_s) is not None:
            self._note(attempt, lambda one: replace(one, first_token_s=one.first_token_s.plus(ttft_s)))
        if attempt.stream.due_s < inf:
            self._gathering.add(attempt)
        return self._sent_of(attempt, entries)

    def _lose(self, attempt: Attempt) -> list[Outgoing]:
        """The events of what an attempt has gathered, of which the engine has lost an output."""
        if attempt.has_ended:
            return []
        self._gathering.discard(attempt)
        self._lost.append(attempt)
        return self._sent_of(attempt, attempt.lose())

    def _sent_of(self, attempt: Attempt, entries: Rows[EmitEntry]) -> list[Outgoing]:
        """The events of an attempt to send. One that has failed for now is put back behind them."""
        if attempt.failure is not None:
            self._failed[attempt] = attempt.failure
        return [(attempt, entry) for entry in entries]

    def _deliver(self, events: list[Outgoing]) -> None:
        """Send events; then send what the answers require, before any new event."""
        if not events and not self._failed:
            return
        self._sending_since_s = since_s = monotonic()
        with suppress(Stopped):
            while events or self._failed:
                events = self._act_on(self._calls.send(events), since_s) or self._put_back_failed()
            self._note_call(monotonic() - since_s)
        self._sending_since_s = None

    def _tell_lost(self) -> None:
        lost, self._lost = self._lost, []
        for attempt in lost:
            self._on_lost(attempt)

    def _note_call(self, seconds: float) -> None:
        self._times_s = self._times_s.plus(seconds)
        self._call_s += (min(seconds, MAX_CALL_S) - self._call_s) / CALLS_OF_LATE

    def _act_on(self, answered: Rows[tuple[Outgoing, Emitted]], since_s: float) -> list[Outgoing]:
        """Act on the ledger's answers; return what must be sent now, before any new event."""
        again: list[Outgoing] = []
        recovered: set[Attempt] = set()
        for (attempt, entry), answer in answered:
            if attempt.is_over or attempt in recovered:
                continue
            if answer.kind in (Emission.OK, Emission.DUPLICATE):
                attempt.emitted_s = since_s
                self._note_written(attempt, entry)
                continue
            recovered.add(attempt)
            again += [(attempt, entry) for entry in self._recover(attempt, entry, answer)]
        return again

    def _note_written(self, attempt: Attempt, entry: EmitEntry) -> None:
        if entry.kind == "started":
            if attempt.stream.is_continued:
                self._note(attempt, lambda one: replace(one, num_taken_over=one.num_taken_over + 1))
            else:
                queue_s = attempt.timings.queue_s or 0.0
                self._note(attempt, lambda one: replace(one, queue_s=one.queue_s.plus(queue_s)))
            self._engine.confirm(attempt.sequences)
        elif entry.kind == "end":
            self._note(attempt, lambda one: one.with_end(attempt))
            self._end(attempt, self._finish)

    def _note(self, attempt: Attempt, add: Callable[[JobFigures], JobFigures]) -> None:
        """Add to the figures of a job's tenant."""
        tenancy = self._tenancies.for_attempt(attempt)
        tenancy.figures = add(tenancy.figures)

    def _put_back_failed(self) -> list[Outgoing]:
        """Put back the jobs whose attempts have failed; return what is to be sent first, or instead."""
        failed, self._failed = self._failed, {}
        in_hand = {attempt: failure for attempt, failure in failed.items() if not attempt.is_over}
        return [(one, entry) for one, failure in in_hand.items() for entry in self._put_back(one, failure)]

    def _put_back(self, attempt: Attempt, failure: Failure) -> list[EmitEntry]:
        delay_ms = attempt.retries.draw_delay_ms()
        try:
            answer = self._calls.insist(
                self._tenancies.for_attempt(attempt).put_back(attempt, failure, delay_ms)
            )
        except CallRefused as error:
            answer = Emitted(Emission.REFUSED, reason=str(error))
        log.info("attempt failed", **attempt.line, code=failure.code, retry=answer.kind, delay_ms=delay_ms)
        if answer.kind is Emission.OK:
            self._note(attempt, lambda one: replace(one, num_retries=one.num_retries + 1))
            self._end(attempt, Attempt.acknowledge)
            return []
        if answer.kind is Emission.CANCELLED:
            return self._cancelled(attempt, answer)
        missing = attempt.stream.after(answer.seq, answer.n) if answer.kind is Emission.GAP else None
        if missing and not self._calls.is_to_give_up:
            self._failed[attempt] = failure
            return missing
        return attempt.give_up(failure)

    def _cancelled(self, attempt: Attempt, answer: Emitted) -> list[EmitEntry]:
        attempt.stream.rewind(answer.seq, answer.n)
        return attempt.close("deadline" if answer.reason == "deadline" else "cancelled")

    def _recover(self, attempt: Attempt, entry: EmitEntry, answer: Emitted) -> list[EmitEntry]:
        """The events to send after one was refused, as were the job's later events in the same call."""
        if answer.kind is Emission.CANCELLED:
            return self._cancelled(attempt, answer)
        if answer.kind is Emission.DAMAGED:
            log.error("Redis has lost a part of a job, ending it", **attempt.line)
            attempt.stream.rewind(answer.seq, answer.n)
            return [attempt.end("error", LOST)]
        if answer.is_full and self._calls.is_to_give_up:
            return []
        if answer.is_full or answer.kind is Emission.GAP:
            missing = attempt.stream.after(answer.seq, answer.n)
            if missing is not None:
                if not answer.is_full:  # which is told once, for all jobs
                    log.warning("sending events again", **attempt.line, num_events=len(missing))
                return missing
        if answer.kind in (Emission.REFUSED, Emission.ERROR) and not attempt.is_cut_short:
            return self._cut_short(attempt, entry, answer.reason)
        if answer.kind is Emission.FINISHED:
            self._end(attempt, self._finish)
            return []
        reason = answer.reason
        if answer.kind is Emission.FENCED:
            self._note(attempt, lambda one: replace(one, num_fenced=one.num_fenced + 1))
            reason = GONE if not answer.seq and entry.seq > 1 else ""
        log.warning("job left this worker", **attempt.line, answer=answer.kind, reason=reason)
        self._end(attempt, Attempt.let_go)
        return []

    def _cut_short(self, attempt: Attempt, entry: EmitEntry, reason: str) -> list[EmitEntry]:
        """End a job after its last recorded event, since Redis does not accept the next one."""
        attempt.is_cut_short = True
        num_bytes, refusal = len(entry.event), ResponseError(reason)
        message = f"Redis does not accept an event of {num_bytes:,} characters ({reason}). {FEWER}"
        if is_denied(refusal):
            message = reason = f"Redis {denied_complaint(refusal, 'record events')}"
        log.error("Redis refused a job's event", **attempt.line, num_bytes=num_bytes, reason=reason)
        with suppress(CallRefused):
            record = self._calls.insist(self._tenancies.for_attempt(attempt).ledger.record(attempt.job_id))
            if record is not None:
                attempt.stream.rewind(record.seq, record.n)
                error = Failure(code=ErrorCode.NOT_RECORDED, message=message)
                return [attempt.end("error", error)]
        self._end(attempt, Attempt.let_go)
        return []

    def _end(self, attempt: Attempt, then: Callable[[Attempt], None]) -> None:
        self._gathering.discard(attempt)
        if self._tenancies.for_attempt(attempt).claims.end(attempt):
            then(attempt)

    def _finish(self, attempt: Attempt) -> None:
        """Have the messages of a job settled that has its final event."""
        tenancy = self._tenancies.for_attempt(attempt)
        tenancy.recent.note_end(attempt.timings.ttft_s)
        self._finisher.settle(tenancy, attempt.job_id, attempt.deliveries, attempt.line)
