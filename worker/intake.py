"""Claims what Celery has delivered, and turns what may be run here into sequences."""

import heapq
import threading
from collections.abc import Sequence as Rows
from contextlib import suppress
from itertools import count
from math import inf
from queue import Empty, Queue
from time import monotonic
from typing import NamedTuple

import structlog
from redis.exceptions import RedisError, ResponseError

from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.tasks.answers import (
    Adopt,
    Busy,
    Cancellation,
    ClaimAnswer,
    Claimed,
    Early,
    Ended,
    Settled,
    Unknown,
)
from llama_herd.tasks.call import Unreadable, run, run_many
from llama_herd.tasks.events import Failure
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger import CancelReason
from llama_herd.tasks.message import Envelope
from llama_herd.worker.attempt import Attempt
from llama_herd.worker.claims import ClaimedJobs
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.engine_thread import EngineThread
from llama_herd.worker.finisher import Finisher
from llama_herd.worker.gate import POLL_S, Gate
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.order import NO_JOB, Order
from llama_herd.worker.output import Output
from llama_herd.worker.owner import Owner
from llama_herd.worker.publisher import Lost, Publisher, Refusal
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.stream import Author, Recorded, Stream

log = structlog.get_logger(__name__)

#: Most messages that are claimed in one round trip.
MAX_CLAIMS = 64

#: Pause before a claim that Redis did not answer is made again.
RETRY_S = 0.3

#: A job that another worker runs is asked for again this long after its lease, in case that worker is gone.
LEASE_MARGIN_S = 0.2


#: The stream of a job that has said nothing.
NOTHING = Recorded({}, "")


class CeleryEnd(NamedTuple):
    """A job that Celery has ended by itself: revoked, or expired. Its stream needs an end, too."""

    job_id: str
    reason: CancelReason


class Later(NamedTuple):
    """What is to be done again at a time; the number keeps equal times in order."""

    due_s: float
    number: int
    item: Delivery | CeleryEnd


class Opened(NamedTuple):
    """A claimed job with its stream; what its sequences are is yet to be found out."""

    attempt: Attempt
    order: Order
    claimed: Claimed
    recorded: Recorded


class Intake(threading.Thread):
    """The one thread that claims jobs. A delivery goes on to the engine, to the finisher, or here again."""

    def __init__(
        self,
        owner: Owner,
        settings: WorkerSettings,
        model: LoadedModel,
        *,
        author: Author,
        claims: ClaimedJobs,
        publisher: Publisher,
        gate: Gate,
        engine: EngineThread,
        finisher: Finisher,
    ) -> None:
        super().__init__(name="intake", daemon=True)
        self._redis = owner.redis
        self._ledger = owner.ledger
        self._owner_id = owner.id
        self._settings = settings
        self._model = model
        self._author = author
        self._claims = claims
        self._publisher = publisher
        self._gate = gate
        self._engine = engine
        self._finisher = finisher
        self._held: list[Opened] = []  # claimed, and to be prepared once the gate lets them in
        self._inbox: Queue[Delivery | CeleryEnd | None] = Queue()
        self._later: list[Later] = []
        self._numbers = count()
        self._is_stopping = False

    def put(self, item: Delivery | CeleryEnd) -> None:
        """Take something over; never blocks."""
        self._inbox.put(item)

    def stop(self) -> None:
        """Claim nothing more; what was not claimed goes back to the queue with the connection."""
        self._is_stopping = True
        self._inbox.put(None)
        self.join()

    def run(self) -> None:
        while not self._is_stopping:
            items = self._take()
            for item in items:
                if isinstance(item, CeleryEnd):
                    self._end(item)
            deliveries = [item for item in items if isinstance(item, Delivery)]
            if deliveries and not self._is_stopping:
                self._claim(deliveries)
            if self._held and not self._is_stopping:
                self._let_in()

    def _take(self) -> list[Delivery | CeleryEnd]:
        """What has come and what is due again, up to a round trip's worth; sleeps until there is some."""
        taken: list[Delivery | CeleryEnd | None] = []
        with suppress(Empty):
            taken.append(self._inbox.get(timeout=self._rest_s()))
            while len(taken) < MAX_CLAIMS:
                taken.append(self._inbox.get_nowait())
        while self._later and self._later[0].due_s <= monotonic():
            taken.append(heapq.heappop(self._later).item)
        return [item for item in taken if item is not None]

    def _rest_s(self) -> float | None:
        """How long there is nothing to do unless something comes."""
        due_s = self._later[0].due_s - monotonic() if self._later else inf
        rest_s = max(0.0, min(due_s, POLL_S if self._held else inf))
        return None if rest_s == inf else rest_s

    def _put_off(self, item: Delivery | CeleryEnd, delay_s: float) -> None:
        heapq.heappush(self._later, Later(monotonic() + delay_s, next(self._numbers), item))

    def _end(self, end: CeleryEnd) -> None:
        try:
            answer = run(self._redis, self._ledger.cancel(end.job_id, end.reason))
            if answer is Cancellation.UNKNOWN:
                self._put_on_record(end.job_id)
                answer = run(self._redis, self._ledger.cancel(end.job_id, end.reason))
            if answer is not Cancellation.ASKED:
                self._finisher.settle(end.job_id, [])
        except RedisError:
            self._put_off(end, RETRY_S)

    def _put_on_record(self, job_id: str) -> None:
        """Make a record for a message that came without our client and never was claimed, to be ended."""
        envelope = Envelope.of_request({"id": job_id}, None, self._settings.queue)
        claim = self._ledger.claim(job_id, self._owner_id, job=NO_JOB, envelope=envelope)
        claimed = run(self._redis, claim)
        if isinstance(claimed, Claimed):
            run(self._redis, self._ledger.release(job_id, self._owner_id, claimed.epoch))

    def _claim(self, deliveries: Rows[Delivery]) -> None:
        """Open all that are ours: from then on their leases are renewed."""
        orders = [Order.read(d.body, d.headers, self._settings) for d in deliveries]
        calls = [
            self._ledger.claim(delivery.job_id, self._owner_id, job=order.job, envelope=order.envelope)
            for delivery, order in zip(deliveries, orders, strict=True)
        ]
        try:
            answers = run_many(self._redis, calls)
        except RedisError as error:
            log.warning("redis does not answer claims, trying on", error=type(error).__name__)
            answers = [Busy(0)] * len(deliveries)
        for delivery, order, answer in zip(deliveries, orders, answers, strict=True):
            try:
                self._act(delivery, order, answer)
            except RedisError:
                self._put_off(delivery, RETRY_S)

    def _act(self, delivery: Delivery, order: Order, answer: ClaimAnswer | ResponseError) -> None:
        """Do what the answer asks for."""
        match answer:
            case Adopt():
                if not self._claims.adopt(delivery):
                    self._claim_again(delivery, order)
            case Claimed():
                self._open(delivery, order, answer)
            case Busy():
                self._put_off(delivery, answer.remaining_ms / 1000 + LEASE_MARGIN_S)
            case Ended():
                self._finisher.settle(delivery.job_id, [delivery])
            case Settled():
                delivery.acknowledge()
            case Early():
                delivery.acknowledge()  # a sweep pushes another message when the job is due
            case Unknown():
                log.warning("message names a job that is forgotten", job_id=delivery.job_id)
                delivery.acknowledge()
            case ResponseError():
                log.error("redis refuses a claim", job_id=delivery.job_id, error=str(answer))
                self._put_off(delivery, RETRY_S)

    def _claim_again(self, delivery: Delivery, order: Order) -> None:
        """The ledger says that the job is in our hands, where it is not.

        Either it has just left them, then the ledger says something else by now; or the reply to our claim
        was lost, then it says the same.
        """
        answer = run(self._redis, self._ledger.claim(delivery.job_id, self._owner_id))
        if isinstance(answer, Adopt):
            self._open(delivery, order, answer)
        else:
            self._act(delivery, order, answer)

    def _open(self, delivery: Delivery, order: Order, claimed: Claimed) -> None:
        """Take a claimed job's stream over from where it stands."""
        recorded = self._recorded(delivery.job_id) if claimed.seq else NOTHING
        attempt = Attempt(
            Stream(delivery.job_id, claimed, recorded, self._author),
            [delivery],
            is_last=0 < claimed.attempts == self._settings.max_attempts - 1,
            waited_s=claimed.waited_s,
        )
        if claimed.deadline_ms is not None:
            attempt.deadline_s = attempt.claimed_s + (claimed.deadline_ms - claimed.now_ms) / 1000
        self._publisher.open(attempt)
        self._held.append(Opened(attempt, order, claimed, recorded))

    def _recorded(self, job_id: str) -> Recorded:
        """What earlier attempts have written; nothing if somebody else has written there, too."""
        try:
            events = run(self._redis, self._ledger.read(job_id))
        except Unreadable:
            return NOTHING
        return Recorded.of(events)

    def _let_in(self) -> None:
        """Begin what may begin: jobs that have killed nobody together, each of the others by itself."""
        held = [one for one in self._held if not one.attempt.is_over and not self._has_ended(one.attempt)]
        held.sort(key=lambda one: one.attempt.is_last)  # whom nobody suspects goes first
        entered = [one for one in held if self._gate.enter(one.attempt)]
        self._held = [one for one in held if one not in entered]
        harmless = [one for one in entered if not one.claimed.attempts]
        for lot in (harmless, *([one] for one in entered if one.claimed.attempts)):
            if lot:
                self._begin_lot(lot)

    def _has_ended(self, attempt: Attempt) -> bool:
        """End a job that is cancelled or overdue before it has begun."""
        reason = attempt.end_before_start
        if reason in ("cancelled", "deadline"):
            self._publisher.put([Refusal(attempt, reason)])
        return reason is not None

    def _begin_lot(self, lot: list[Opened]) -> None:
        """Begin jobs between two notes in the ledger: a death meanwhile counts against them."""
        claims = [(one.attempt.job_id, one.claimed.epoch) for one in lot]
        try:
            are_ours = run(self._redis, self._ledger.prepare(self._owner_id, claims))
        except RedisError:
            self._hold_again(lot)
            return
        for one, is_ours in zip(lot, are_ours, strict=True):
            if not is_ours:
                self._publisher.put([Lost(one.attempt)])
            elif self._is_stopping:
                self._hold_again([one])
            else:
                self._begin(one)
        with suppress(RedisError):  # then a death that comes now counts against them, too
            run(self._redis, self._ledger.prepare(self._owner_id, claims, is_done=True))

    def _hold_again(self, lot: list[Opened]) -> None:
        for one in lot:
            self._gate.leave(one.attempt)
        self._held += lot

    def _begin(self, opened: Opened) -> None:
        """Run a job, or end it at once when it cannot be run."""
        attempt = opened.attempt
        try:
            self._prepare(attempt, opened.claimed, opened.recorded)
        except InvalidJob as error:
            # What was wrong with the message says more than that the record it has made holds no job.
            self._refuse(attempt, Failure(code="invalid_job", message=str(opened.order.error or error)))
        except GenerationError as error:
            self._refuse(attempt, Failure(code=error.code, message=error.message, retriable=error.retriable))
        except (SystemExit, KeyboardInterrupt):
            raise
        except (
            BaseException
        ) as error:  # also a panic of native code: whatever is wrong with one job, others go on
            log.exception("job cannot be prepared", job_id=attempt.job_id)
            message = f"{type(error).__name__} while the job was made ready"
            self._refuse(attempt, Failure(code="model_error", message=message))

    def _prepare(self, attempt: Attempt, claimed: Claimed, recorded: Recorded) -> None:
        if sum(map(len, recorded.ids.values())) != claimed.n:
            raise GenerationError("model_error", "the job's stream is broken, so it cannot be gone on with")
        job = GenerationJob.parse(claimed.body, self._settings)
        if job.model not in (None, self._settings.served_model):
            message = f"this queue's worker serves {self._settings.served_model}, not the model asked for"
            raise InvalidJob([FieldError("model", message)])
        since_ms = round(1000 * (monotonic() - attempt.claimed_s))
        sequences = self._model.sequences(attempt.job_id, job, claimed.now_ms + since_ms)
        for sequence in sequences:
            sequence.replay(recorded.ids.get(sequence.choice, ()))
        attempt.stream.flush_s = job.flush_ms / 1000
        attempt.stream.num_choices = len(sequences)
        attempt.sequences = sequences
        for sequence in sequences:
            sequence.abort = attempt.abort  # by who came before there were sequences
            sequence.is_held = True
        ended = [Output(one, finish_reason=one.finish_reason) for one in sequences if one.finish_reason]
        if ended:
            self._publisher.put(ended)
        for sequence in sequences:
            if sequence.finish_reason is None:
                self._engine.submit(sequence)
        if attempt.is_over:  # since it was begun, by who found no sequences to drop
            for sequence in sequences:
                self._engine.abort(sequence, "dropped")

    def _refuse(self, attempt: Attempt, error: Failure) -> None:
        log.info("job refused", job_id=attempt.job_id, code=error.code)
        self._publisher.put([Refusal(attempt, "error", error)])
