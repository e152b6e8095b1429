"""Hands finished jobs back to Celery: folds the result from the stream, runs the tracer, acks the message."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence as Rows
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from traceback import format_tb
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

import structlog
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from structlog.contextvars import bound_contextvars

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.tasks.connection.temporary_errors import redis_message
from llama_herd.tasks.ledger.answers import Busy, Settled, Settling, StreamPart
from llama_herd.tasks.ledger.redis_call import RedisCall, raise_if_error, run_call, run_calls
from llama_herd.tasks.protocol.events import Event, Timings
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.delivery import Debt, Delivery
from llama_herd.worker.broker.result_backend import NO_VALUE, ResultValue, storing_error
from llama_herd.worker.broker.result_server import RESULT_SERVER, ResultsAway
from llama_herd.worker.insisting import Stopped, insist, lasting
from llama_herd.worker.jobs.tenancy import Tenancy

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SettlingAnswer = Settling | Busy | Settled

NUM_THREADS = 2

#: Most jobs of which a thread asks the ledger, and that it notes there, in one round trip.
MAX_LOT = 16

#: How long a stopping worker waits for results that are being stored.
STOP_S = 2.0

#: A finisher that is settling a job and is silent for this long, twice, is taken for dead.
SETTLING_MS = 5000
#: How often a settling finisher reports itself, and how often postponed settlements are checked.
REPORT_S = 1.0

#: When a result is to be stored that was not taken, in the results' own Redis, once that can be used.
OWED_MS = 2000


class Settlement(NamedTuple):
    """A job that has its final event, and the messages to settle with its result, or what is owed.

    `line`: what each line of the log says of the job. `error`: why it can have no final event.
    """

    tenancy: Tenancy
    job_id: str
    deliveries: Rows[Delivery | Debt]
    line: Mapping[str, object]
    error: GenerationError | None
    #: By which the ledger knows who settles the job.
    token: str

    @property
    def ask(self) -> RedisCall[SettlingAnswer]:
        """The call that asks whether it may be settled here, and reports that this goes on."""
        return self.tenancy.ledger.settling(self.job_id, self.token, SETTLING_MS)

    def note(self, result: ResultValue = NO_VALUE) -> RedisCall[bool]:
        """The call that stores a result and notes that all is settled. Answers whether it was purged."""
        return self.tenancy.settle(self.job_id, result)


class Begun(NamedTuple):
    """What Redis says of a job that is to be settled: whether it may be, and the beginning of its stream."""

    turn: SettlingAnswer
    first: StreamPart | ResponseError


class Finisher:
    """Settles the deliveries of jobs whose final event is in the ledger.

    The result is always folded from the stream. So it cannot differ from what subscribers have read, whoever
    wrote the stream and however often the job's message comes back.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._inbox: SimpleQueue[Settlement | None] = SimpleQueue()
        #: Settlements to try again, since another finisher is at them, and when.
        self._later: list[tuple[float, Settlement]] = []
        #: What is being settled here, by its token.
        self._settling: dict[str, Settlement] = {}
        self._reporting = threading.Lock()
        self._num_answered = [0] * NUM_THREADS
        self._num_in_hand = [0] * NUM_THREADS
        self._is_stopping = threading.Event()
        # Daemons: a result backend that does not answer must not delay the end of the process.
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"finisher-{number}", daemon=True)
            for number in range(NUM_THREADS)
        ]
        reporter = threading.Thread(target=self._report, name="settlements", daemon=True)
        for thread in (*self._threads, reporter):
            thread.start()

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for a thread or are being settled."""
        return self._inbox.qsize() + sum(self._num_in_hand)

    @property
    def num_answered(self) -> int:
        """Jobs that were settled since the start, or failed to be."""
        return sum(self._num_answered)

    def settle(
        self,
        tenancy: Tenancy,
        job_id: str,
        deliveries: Rows[Delivery | Debt],
        line: Mapping[str, object] = MappingProxyType({}),
        error: GenerationError | None = None,
    ) -> None:
        """Settle the first delivery and acknowledge the others; returns at once."""
        about = {"job_id": job_id, **line}
        self._inbox.put(Settlement(tenancy, job_id, deliveries, about, error, uuid4().hex))

    def stop(self) -> None:
        """Finish the current settlements; messages left unsettled are delivered again and settled then."""
        self._is_stopping.set()
        for _ in self._threads:
            self._inbox.put(None)
        until_s = monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - monotonic()))

    def _run(self, number: int) -> None:
        while lot := self._take():
            self._num_in_hand[number] = len(lot)
            with suppress(Stopped):
                self._settle(lot, number)
            self._num_answered[number] += self._num_in_hand[number]
            self._num_in_hand[number] = 0

    def _take(self) -> list[Settlement]:
        """Wait for a job, and take along those that wait behind it; none: the worker stops."""
        lot = [self._inbox.get()]
        with suppress(Empty):
            while lot[-1] is not None and len(lot) < MAX_LOT:
                lot.append(self._inbox.get_nowait())
        if len(lot) > 1 and lot[-1] is None:
            self._inbox.put(None)
        return [one for one in lot if one is not None]

    def _report(self) -> None:
        """Report the jobs that are being settled here, and try postponed settlements again."""
        while not self._is_stopping.wait(REPORT_S):
            self._report_settling()
            for later in list(self._later):
                due_s, settlement = later
                if due_s <= monotonic():
                    self._later.remove(later)
                    self._inbox.put(settlement)

    def _report_settling(self) -> None:
        with suppress(RedisError), self._reporting:
            if asks := [settlement.ask for settlement in list(self._settling.values())]:
                run_calls(self._redis, asks)

    def _settle(self, lot: Rows[Settlement], number: int) -> None:
        """Settle some jobs: each by itself, but Redis is asked of all and told of all at once.

        No message is acknowledged before Celery knows how the job ended, or that is owed or cannot be.
        """
        told, notes = list[Settlement](), list[RedisCall[bool]]()
        try:
            for settlement, begun in self._of_each(lot, partial(self._begin, lot)):
                note = self._apart(settlement, partial(self._tell, settlement, begun))
                if note is not None:
                    told.append(settlement)
                    notes.append(note)
                self._num_in_hand[number] -= 1
                self._num_answered[number] += 1
            for settlement, is_purged in self._of_each(told, partial(self._note_settled, notes)):
                self._apart(settlement, partial(self._close, settlement, is_purged))
        finally:
            for settlement in lot:
                self._settling.pop(settlement.token, None)

    def _of_each(
        self, lot: Rows[Settlement], ask: Callable[[], Rows[T | Exception]]
    ) -> Iterator[tuple[Settlement, T | Exception]]:
        """Each job with its answer; an error that will not pass by itself is the answer for all of them."""
        answers: Rows[T | Exception]
        try:
            answers = self._insist(ask)
        except Stopped:
            raise
        except Exception as error:
            answers = [error] * len(lot)
        return zip(lot, answers, strict=True)

    def _apart(self, settlement: Settlement, act: Callable[[], T]) -> T | None:
        """Do a part of a settlement, whose trouble is nobody else's: it is told to Celery, or owed."""
        with bound_contextvars(**settlement.line):  # also for what Celery logs
            try:
                with RESULT_SERVER.owing():
                    try:
                        return act()
                    except (Stopped, ResultsAway):
                        raise
                    except BaseException as error:  # also the exit that an errback or a signal asks for
                        self._fail(settlement, error)
                        error.__traceback__ = None  # its frames hold it, and messages
            except ResultsAway as away:
                self._owe(settlement, away)
        return None

    def _begin(self, lot: Rows[Settlement]) -> list[Begun | Exception]:
        """Ask which jobs may be settled here, and read their events if they are few, in one round trip."""
        begun: dict[str, Begun | Exception] = {one.token: one.error for one in lot if one.error is not None}
        asking = [one for one in lot if one.error is None]
        calls: list[RedisCall[Any]] = [
            call for one in asking for call in (one.ask, one.tenancy.reader.part(one.job_id))
        ]
        answers = lasting(run_calls(self._redis, calls))
        for one, turn, first in zip(asking, answers[::2], answers[1::2], strict=True):
            begun[one.token] = turn if isinstance(turn, ResponseError) else Begun(turn, first)
            if isinstance(turn, Settling):
                self._settling[one.token] = one
        return [begun[one.token] for one in lot]

    def _owe(self, settlement: Settlement, away: ResultsAway) -> None:
        """Note in the ledger that Celery is still to be told: from then on the message is not needed."""
        tenancy, job_id, deliveries, *_ = settlement
        with self._reporting:  # a report from now on would take the turn again
            self._settling.pop(settlement.token, None)
        owe = tenancy.ledger.owe(job_id, OWED_MS, has_sent_links=away.has_sent_links)
        try:
            self._insist(run_call, self._redis, owe)
        except RedisError as error:  # as of a key that somebody has spoilt: the message is still needed
            log.error("job's result cannot be owed, trying again", error=redis_message(error))
            self._later.append((monotonic() + OWED_MS / 1000, settlement))
            return
        log.info("job's result is owed")
        _acknowledge(deliveries)

    def _tell(self, settlement: Settlement, begun: Begun | Exception) -> RedisCall[bool] | None:
        """Run Celery's tracer with the job's outcome. Returns the call that notes this, if it is ours."""
        tenancy, job_id, deliveries, *_ = settlement
        match begun:
            case Exception():
                raise begun
            case Begun(Settled()):
                self._leave(settlement)
                return None
            case Begun(Busy(remaining_ms)):
                self._later.append((monotonic() + remaining_ms / 1000, settlement))
                return None
            case Begun(Settling(keep_s, has_sent_links), first):
                pass
        events = self._insist(lambda: list(tenancy.reader.events(job_id, first)))
        if not events and self._insist(run_call, self._redis, tenancy.ledger.is_purged(job_id)):
            self._leave(settlement)
            return None
        outcome = _outcome(events)
        life_s = tenancy.ledger.result_life_s(keep_s, outcome)
        result = self._insist(deliveries[0].settle, outcome, life_s, has_sent_links=has_sent_links)
        _log_end(outcome, settlement.line.get("attempt"))
        return settlement.note(result)

    def _leave(self, settlement: Settlement) -> None:
        """Tell Celery nothing: it knows of the job's end, or the job was purged."""
        if isinstance(settlement.deliveries[0], Debt):
            self._insist(self._delete_if_purged, settlement.tenancy, settlement.job_id)
            self._insist(run_call, self._redis, settlement.note())
        _acknowledge(settlement.deliveries)

    def _fail(self, settlement: Settlement, error: BaseException) -> None:
        """Store that the job's result cannot be stored: clients that wait for it would wait for ever."""
        deliveries = settlement.deliveries
        refused = storing_error(error)
        # An unexpected error is logged by where it was raised, not by its text, which may quote the job.
        is_ours = not isinstance(error, GenerationError | RedisError)
        stack = "".join(format_tb(error.__traceback__)) if is_ours else None
        log.error("job's result was not stored", error=str(refused), stack=stack)
        try:
            for delivery in deliveries[:1]:
                self._insist(delivery.fail, refused)
                (is_purged,) = self._insist(self._note_settled, [settlement.note()])
                if raise_if_error(is_purged):
                    self._insist(_delete_result, settlement.tenancy, settlement.job_id)
        except Stopped:
            raise
        except Exception as again:
            log.error("job's failure was not stored either", error=str(storing_error(again)))
            again.__traceback__ = None
        _acknowledge(deliveries)

    def _insist(self, act: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Retry until Redis accepts it. Raises Stopped, and any error that will not pass by itself."""
        return insist(lambda: act(*args, **options), "a result", pause=self._is_stopping.wait)

    def _delete_if_purged(self, tenancy: Tenancy, job_id: str) -> None:
        if run_call(self._redis, tenancy.ledger.is_purged(job_id)):
            _delete_result(tenancy, job_id)

    def _note_settled(self, notes: Rows[RedisCall[bool]]) -> list[bool | ResponseError]:
        """Store results, and note that later messages of these jobs need nothing. Of each: was it purged?"""
        return lasting(run_calls(self._redis, notes))

    def _close(self, settlement: Settlement, is_purged: bool | Exception) -> None:
        """Have the messages acknowledged of a job whose result is stored."""
        if isinstance(is_purged, Exception):
            raise is_purged
        if is_purged:  # a failure, or a result in another Redis, may have been stored just after the purge
            self._insist(_delete_result, settlement.tenancy, settlement.job_id)
        first, *others = settlement.deliveries
        first.close()
        _acknowledge(others)


def _acknowledge(deliveries: Rows[Delivery | Debt]) -> None:
    for delivery in deliveries:
        delivery.acknowledge()


def _delete_result(tenancy: Tenancy, job_id: str) -> None:
    tenancy.app.backend.delete(tenancy.ledger.result_key(job_id))


def _outcome(events: list[Event]) -> Result:
    if not events:
        raise GenerationError(ErrorCode.FORGOTTEN, "the job has ended, but its stream is no longer kept")
    return Result.from_events(events)


def _log_end(result: Result, attempt: object) -> None:
    """`attempt`: the one that has ended the job; None: it was another worker's."""
    usage, timings = result.usage, result.timings or Timings()
    num_tokens = usage.completion_tokens if usage else len(result.ids)
    tokens_per_s = None  # other attempts have drawn some of them, or the job never started
    if result.attempts == 1 and timings.queue_s is not None and timings.total_s is not None:
        tokens_per_s = round(num_tokens / max(timings.total_s - timings.queue_s, 1e-6), 1)
    log.info(
        "job ended",
        attempt=result.attempts if attempt is None else attempt,
        finish_reason=result.finish_reason,
        code=result.error.code if result.error else None,
        prompt_tokens=usage.prompt_tokens if usage else None,
        tokens=num_tokens,
        queue_s=timings.queue_s,
        ttft_s=timings.ttft_s,
        total_s=timings.total_s,
        tokens_per_s=tokens_per_s,
    )
