"""Claims the jobs that Celery has delivered, and hands the ones that may run here to the preparer."""

import threading
from collections.abc import Sequence as Rows
from contextlib import suppress
from dataclasses import replace
from math import inf
from queue import Empty, Queue
from time import monotonic
from typing import NamedTuple

import structlog
from redis.exceptions import RedisError, ResponseError

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.tasks.connection.broken_connections import LARGE_BYTES, BrokenConnections
from llama_herd.tasks.connection.complaint import redis_complaint
from llama_herd.tasks.connection.temporary_errors import is_temporary, redis_message
from llama_herd.tasks.ledger.answers import (
    Adopt,
    Busy,
    ClaimAnswer,
    Claimed,
    Early,
    Ended,
    Settled,
    Unknown,
    Yours,
)
from llama_herd.tasks.ledger.redis_call import UnreadableReply, run_call, run_calls
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import urgency_of
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.result_readers import ResultReaders
from llama_herd.worker.broker.task_message import NO_JOB, TaskMessage
from llama_herd.worker.engine.interface import Abort
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_calls import BREAKING, MAX_REASON
from llama_herd.worker.jobs.event_log import EventLog
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.preparer import OpenedJob, Preparer
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.suspect_gate import POLL_S
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

log = structlog.get_logger(__name__)

#: Most messages that are claimed in one round trip.
MAX_CLAIMS = 64

#: Pause before a failed claim is made again.
RETRY_S = 0.3

#: A job that another worker runs is claimed again this long after its lease, in case that worker is gone.
LEASE_MARGIN_S = 0.2

#: A claim may be several times longer in Redis than its message. One so long that it may break the
#: connection is made alone.
LARGE_CLAIM = LARGE_BYTES // 8

#: The stream of a job without events.
NOTHING = RecordedOutputs.from_events(())


class CeleryEnd(NamedTuple):
    """A running job that Celery's remote control has ended."""

    job_id: str
    queue: str


#: What other threads tell the intake. An attempt is lost: its server has died, and its job begins anew.
IntakeItem = Delivery | CeleryEnd | Attempt


class Intake(threading.Thread):
    """The one thread that claims jobs. A delivery goes to the preparer, to the finisher, or is tried again.

    Claims come before preparation: between two jobs that are prepared it claims new arrivals.
    """

    def __init__(self, tenancies: Tenancies, preparer: Preparer, finisher: Finisher) -> None:
        super().__init__(name="intake", daemon=True)
        self._redis = tenancies.redis
        self._tenancies = tenancies
        self._finisher = finisher
        self._preparer = preparer
        self._inbox: Queue[IntakeItem | None] = Queue()
        self._later: list[tuple[float, IntakeItem]] = []  # when each is tried again, by time.monotonic
        self._senders = ResultReaders(tenancies.first.settings)
        self._breaks: dict[Delivery, BrokenConnections] = {}  # of large claims that failed
        self._may_begin_more = False
        self._is_refused = False
        self._is_stopping = False

    def put(self, item: IntakeItem) -> None:
        """Hand an item to this thread; never blocks."""
        self._inbox.put(item)

    def stop(self) -> None:
        """Claim no more jobs; unclaimed messages go back to the queue when the connection closes."""
        self._is_stopping = True
        self._inbox.put(None)
        self.join()

    def run(self) -> None:
        while not self._is_stopping:
            items = self._take()
            for item in items:
                if isinstance(item, CeleryEnd):
                    self._end(item)
                elif isinstance(item, Attempt):
                    self._claim_lost(item)
            deliveries = [item for item in items if isinstance(item, Delivery)]
            if deliveries and not self._is_stopping:
                self._claim(deliveries)
            self._may_begin_more = not self._is_stopping and self._preparer.begin_one()
        self._preparer.stop()

    def _take(self) -> list[IntakeItem]:
        """New and due items, as many as one round trip may claim; sleeps until there are any."""
        taken: list[IntakeItem | None] = []
        with suppress(Empty):
            taken.append(self._inbox.get(timeout=self._rest_s()))
            while len(taken) < MAX_CLAIMS:
                taken.append(self._inbox.get_nowait())
        now_s = monotonic()
        taken += [item for due_s, item in self._later if due_s <= now_s]
        self._later = [one for one in self._later if one[0] > now_s]
        return [item for item in taken if item is not None]

    def _rest_s(self) -> float | None:
        """The seconds to sleep unless an item arrives; None: any time."""
        if self._may_begin_more:
            return 0.0
        due_s = min((due_s for due_s, _ in self._later), default=inf)
        rest_s = max(0.0, min(due_s - monotonic(), POLL_S if self._preparer.is_holding else inf))
        return None if rest_s == inf else rest_s

    def _put_off(self, item: IntakeItem, delay_s: float) -> None:
        self._later.append((monotonic() + delay_s, item))

    def _end(self, end: CeleryEnd) -> None:
        """Have a job cancelled; an error that will not pass is that of its record, which ends it too."""
        tenancy = self._tenancies.for_queue(end.queue)
        try:
            run_call(self._redis, tenancy.ledger.cancel(end.job_id, "revoked"))
        except RedisError as error:
            if is_temporary(error):
                self._put_off(end, RETRY_S)

    def _claim_lost(self, attempt: Attempt) -> None:
        """Claim a job anew whose server has died: that counts against it as a death of this worker would."""
        tenancy = self._tenancies.for_attempt(attempt)
        if attempt.is_over:
            return
        answer: ClaimAnswer | ResponseError
        try:
            run_call(self._redis, tenancy.release(attempt, has_died=True))
            answer = run_call(self._redis, tenancy.claim(attempt.job_id))
        except RedisError as error:
            if not isinstance(error, ResponseError) or is_temporary(error):
                self._put_off(attempt, RETRY_S)
                return
            answer = error
        if tenancy.claims.end(attempt):
            first, *others = attempt.deliveries
            self._act_or_end(first, answer)
            for delivery in others:
                self._put_off(delivery, 0.0)

    def _claim(self, deliveries: Rows[Delivery]) -> None:
        """Claim jobs: the small ones together, each large one by itself."""
        for one in deliveries:
            one.message = TaskMessage.read(one.body, one.headers, self._tenancy_of(one).settings)
            self._senders.look(one.headers)
        small = [one for one in deliveries if not _is_large(one)]
        for lot in (small, *([one] for one in deliveries if _is_large(one))):
            if lot and not self._is_stopping:
                self._claim_lot(lot)

    def _claim_lot(self, lot: Rows[Delivery]) -> None:
        """Claim jobs in one round trip, and open the ones that are ours: then their leases are renewed."""
        calls = [
            self._tenancy_of(one).claim(one.job_id, one.message.job, one.message.envelope) for one in lot
        ]
        try:
            answers = run_calls(self._redis, calls)
        except RedisError as error:
            self._note_outage(error)
            self._try_again(lot, error)
            return
        if not any(isinstance(answer, ResponseError) for answer in answers):
            self._is_refused = False
        for delivery, answer in zip(lot, self._with_first_parts(lot, answers), strict=True):
            self._breaks.pop(delivery, None)
            self._act_or_end(delivery, answer)

    def _with_first_parts(
        self, lot: Rows[Delivery], answers: list[ClaimAnswer | ResponseError]
    ) -> list[ClaimAnswer | ResponseError]:
        """The answers, with the beginnings of the streams of jobs that have run before, in one round trip."""
        pairs = zip(lot, answers, strict=True)
        begun = {one: answer for one, answer in pairs if isinstance(answer, Yours) and answer.seq}
        calls = [self._tenancy_of(one).reader.part(one.job_id, with_scores=False) for one in begun]
        try:
            parts = run_calls(self._redis, calls)
        except RedisError:
            return answers  # each is read again by itself
        found = {
            one: replace(answer, first_part=part)
            for (one, answer), part in zip(begun.items(), parts, strict=True)
        }
        return [found.get(one, answer) for one, answer in zip(lot, answers, strict=True)]

    def _note_outage(self, error: RedisError) -> None:
        """Log why claims are made again, once until Redis takes them."""
        if not self._is_refused:
            log.warning("Redis takes no claims, retrying", reason=f"Redis {redis_complaint(error)}")
        self._is_refused = True

    def _try_again(self, lot: Rows[Delivery], error: RedisError) -> None:
        """Make claims again later, but give up a large one that breaks the connection each time."""
        for one in lot:
            if _is_large(one):
                breaks = self._breaks.setdefault(one, BrokenConnections())
                breaks.note(self._redis, error)
                if breaks.are_no_accident:
                    del self._breaks[one]
                    self._act_on_error(one, UnreadableReply(BREAKING))
                    continue
            self._put_off(one, RETRY_S)

    def _act_or_end(self, delivery: Delivery, answer: ClaimAnswer | ResponseError) -> None:
        """Act on the answer to a claim, or on an error of Redis, also one that comes meanwhile."""
        try:
            if isinstance(answer, ResponseError):
                raise answer
            self._act(delivery, answer)
        except RedisError as error:
            self._act_on_error(delivery, error)
            error.__traceback__ = None  # its frames hold it, and the message

    def _act(self, delivery: Delivery, answer: ClaimAnswer) -> None:
        """Act on the answer to a claim."""
        match answer:
            case Adopt():
                if not self._tenancy_of(delivery).claims.adopt(delivery):
                    self._claim_again(delivery)
            case Claimed():
                self._open(delivery, answer)
            case Busy():
                self._put_off(delivery, answer.remaining_ms / 1000 + LEASE_MARGIN_S)
            case Ended() | Unknown():  # one whose record is forgotten has ended, and Celery may not know it
                self._finisher.settle(
                    self._tenancy_of(delivery), delivery.job_id, [delivery], self._line(delivery)
                )
            case Settled() | Early():  # a sweep pushes a new message when an early one is due
                delivery.acknowledge()

    def _act_on_error(self, delivery: Delivery, error: RedisError) -> None:
        """Try again if the error may pass. Otherwise record the job without its content, and end it."""
        if is_temporary(error):
            self._note_outage(error)
            self._put_off(delivery, RETRY_S)
            return
        reason = redis_message(error)[:MAX_REASON]
        log.error("Redis refused a claim, ending the job", **self._line(delivery), error=reason)
        tenancy = self._tenancy_of(delivery)
        envelope = Envelope.for_job(delivery.job_id, tenancy.queue)
        refusal = InvalidJob([FieldError("job", f"cannot be recorded: Redis says {reason}")])
        try:
            answer = run_call(self._redis, tenancy.claim(delivery.job_id, NO_JOB, envelope))
            delivery.message = TaskMessage(NO_JOB, envelope, refusal, delivery.message.embed)
            self._act(delivery, answer)
        except RedisError as again:
            if is_temporary(again):
                self._put_off(delivery, RETRY_S)
            else:
                refused = GenerationError(ErrorCode.NOT_RECORDED, str(refusal))
                self._finisher.settle(tenancy, delivery.job_id, [delivery], self._line(delivery), refused)
            again.__traceback__ = None

    def _claim_again(self, delivery: Delivery) -> None:
        """Claim again a job that the ledger says is ours, though we do not have it.

        Either it has just ended here: then the answer is another one by now. Or the reply to our first claim
        was lost: then the answer is the same, and the job is opened.
        """
        answer = run_call(self._redis, self._tenancy_of(delivery).claim(delivery.job_id))
        if isinstance(answer, Adopt):
            self._open(delivery, answer)
        else:
            self._act(delivery, answer)

    def _open(self, delivery: Delivery, claimed: Claimed) -> None:
        """Begin an attempt at a claimed job, where its stream ends."""
        recorded = self._recorded(delivery, claimed) if claimed.seq else NOTHING
        tenancy = self._tenancy_of(delivery)
        attempt = Attempt(
            EventLog(delivery.job_id, claimed, recorded, tenancy.author),
            [delivery],
            is_last=0 < claimed.deaths == tenancy.settings.max_deaths - 1,
            urgency=urgency_of(claimed.lane),
            trace_id=delivery.trace_id,
            waited_s=claimed.waited_s,
            abort=self._abort_of(delivery, claimed),
        )
        if claimed.deadline_ms is not None:
            attempt.deadline_s = attempt.claimed_s + (claimed.deadline_ms - claimed.now_ms) / 1000
        tenancy.claims.begin(attempt)
        self._preparer.hold(OpenedJob(attempt, claimed, recorded))

    def _abort_of(self, delivery: Delivery, claimed: Claimed) -> Abort | None:
        """Why a job must end before it runs, though its record does not say so.

        The ledger knew nothing of it when it was revoked, or its message has expired before it began. A retry
        is a beginning.
        """
        if delivery.message.job and delivery.job_id in self._tenancy_of(delivery).revoked:
            return "cancelled"
        goes_on = claimed.attempts and not claimed.retries
        return None if delivery.ended_by_celery == "deadline" and goes_on else delivery.ended_by_celery

    def _recorded(self, delivery: Delivery, claimed: Claimed) -> RecordedOutputs:
        """Read what earlier attempts have recorded; nothing if not only workers have written the stream."""
        try:
            reader = self._tenancy_of(delivery).reader
            events = reader.events(delivery.job_id, claimed.first_part, with_scores=False)
            return RecordedOutputs.from_events(events)
        except RedisError as error:
            if is_temporary(error):
                raise
            reason = redis_message(error)[:MAX_REASON]
            log.error("job's stream was not written by workers", **self._line(delivery), error=reason)
            return NOTHING

    def _line(self, delivery: Delivery) -> dict[str, object]:
        """Return the fields of a line of the log about a job that is not claimed."""
        return self._tenancy_of(delivery).author.line(delivery.job_id, None, delivery.trace_id)

    def _tenancy_of(self, delivery: Delivery) -> Tenancy:
        return self._tenancies.for_queue(delivery.queue)


def _is_large(delivery: Delivery) -> bool:
    envelope = delivery.message.envelope
    return len(delivery.body) + len(envelope.text if envelope else "") >= LARGE_CLAIM
