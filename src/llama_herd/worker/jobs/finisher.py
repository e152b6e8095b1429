"""Hands finished jobs back to Celery: folds the result from the stream, runs the tracer, acks the message."""

import threading
from collections.abc import Callable, Mapping, Sequence as Rows
from contextlib import suppress
from queue import SimpleQueue
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
from llama_herd.tasks.generate import correct_state
from llama_herd.tasks.ledger.answers import Busy, Settled, Settling
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call, run_calls
from llama_herd.tasks.protocol.events import Event, Timings
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.delivery import Debt, Delivery
from llama_herd.worker.broker.result_backend import storing_error
from llama_herd.worker.broker.result_server import RESULT_SERVER, ResultsAway
from llama_herd.worker.insisting import Stopped, insist
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.jobs.tenancy import Tenancy

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SettlingAnswer = Settling | Busy | Settled

NUM_THREADS = 2

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

    No messages: Celery has ended the task by itself. `line`: what each line of the log says of the job.
    `error`: why it can have no final event.
    """

    tenancy: Tenancy
    job_id: str
    deliveries: Rows[Delivery | Debt]
    line: Mapping[str, object]
    error: GenerationError | None = None


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
        #: What reports that a job is being settled here, by the token that says so in its record.
        self._settling: dict[str, RedisCall[SettlingAnswer]] = {}
        self._num_answered = [0] * NUM_THREADS
        self._is_busy = [False] * NUM_THREADS
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
        return self._inbox.qsize() + sum(self._is_busy)

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
        self._inbox.put(Settlement(tenancy, job_id, deliveries, {"job_id": job_id, **line}, error))

    def stop(self) -> None:
        """Finish the current settlements; messages left unsettled are delivered again and settled then."""
        self._is_stopping.set()
        for _ in self._threads:
            self._inbox.put(None)
        until_s = monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - monotonic()))

    def _run(self, number: int) -> None:
        while (settlement := self._inbox.get()) is not None:
            self._is_busy[number] = True
            self._settle(settlement)
            self._num_answered[number] += 1
            self._is_busy[number] = False

    def _report(self) -> None:
        """Report the jobs that are being settled here, and try postponed settlements again."""
        while not self._is_stopping.wait(REPORT_S):
            for report in list(self._settling.values()):
                with suppress(RedisError):
                    run_call(self._redis, report)
            for later in list(self._later):
                due_s, settlement = later
                if due_s <= monotonic():
                    self._later.remove(later)
                    self._inbox.put(settlement)

    def _settle(self, settlement: Settlement) -> None:
        """No message is acknowledged before Celery knows how the job ended, or that is owed or cannot be."""
        with suppress(Stopped), bound_contextvars(**settlement.line):  # also for what Celery logs
            try:
                with RESULT_SERVER.owing():
                    done = self._finish_or_fail(settlement)
            except ResultsAway as away:
                done = self._owe(settlement, away)
            for delivery in done:
                delivery.acknowledge()

    def _finish_or_fail(self, settlement: Settlement) -> Rows[Delivery | Debt]:
        try:
            return self._finish(settlement)
        except (Stopped, ResultsAway):
            raise
        except BaseException as error:  # also the exit that somebody's errback or signal asks for
            return self._fail(settlement, error)

    def _owe(self, settlement: Settlement, away: ResultsAway) -> Rows[Delivery | Debt]:
        """Note in the ledger that Celery is still to be told: from then on the message is not needed."""
        tenancy, job_id, deliveries, *_ = settlement
        owe = tenancy.ledger.owe(job_id, OWED_MS, has_sent_links=away.has_sent_links)
        self._insist(run_call, self._redis, owe)
        log.info("job's result is owed")
        return deliveries

    def _finish(self, settlement: Settlement) -> Rows[Delivery | Debt]:
        """Run Celery's tracer with the job's outcome; return the deliveries that are left to acknowledge."""
        tenancy, job_id, deliveries, _, error = settlement
        if error is not None:
            raise error
        if not deliveries:
            self._insist(self._correct, tenancy, job_id)
            return []
        token = uuid4().hex
        ask = tenancy.ledger.settling(job_id, token, SETTLING_MS)
        turn, events = self._insist(self._begin, tenancy.reader, job_id, ask)
        match turn:
            case Settled():
                if isinstance(deliveries[0], Debt):
                    self._insist(self._delete_if_purged, tenancy, job_id, tenancy.ledger.is_purged(job_id))
                    self._insist(run_call, self._redis, tenancy.settle(job_id))
                return deliveries
            case Busy():
                self._later.append((monotonic() + turn.remaining_ms / 1000, settlement))
                return []
            case Settling(keep_s, has_sent_links):
                pass
        self._settling[token] = ask
        try:
            outcome = _outcome(events)
            life_s = tenancy.ledger.result_life_s(keep_s, outcome)
            self._insist(deliveries[0].settle, outcome, life_s, has_sent_links=has_sent_links)
            self._insist(self._note_settled, tenancy, job_id)
        finally:
            del self._settling[token]
        _log_end(outcome, settlement.line.get("attempt"))
        return deliveries[1:]

    def _fail(self, settlement: Settlement, error: BaseException) -> Rows[Delivery | Debt]:
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
                self._insist(self._note_settled, settlement.tenancy, settlement.job_id)
        except Stopped:
            raise
        except Exception as again:
            log.error("job's failure was not stored either", error=str(storing_error(again)))
        return deliveries

    def _insist(self, act: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Retry until Redis accepts it. Raises Stopped, and any error that will not pass by itself."""
        return insist(lambda: act(*args, **options), "a result", pause=self._is_stopping.wait)

    def _begin(
        self, reader: StreamReader, job_id: str, ask: RedisCall[SettlingAnswer]
    ) -> tuple[SettlingAnswer, list[Event]]:
        """Ask whether this finisher may settle the job, and read its events, in one trip if they are few."""
        calls: list[RedisCall[Any]] = [ask, reader.part(job_id)]
        turn, part = run_calls(self._redis, calls)
        if isinstance(turn, ResponseError):
            raise turn
        return turn, list(reader.events(job_id, part)) if isinstance(turn, Settling) else []

    def _correct(self, tenancy: Tenancy, job_id: str) -> None:
        """Correct the outcome that Celery has stored by itself, if it is wrong."""
        task = run_call(self._redis, tenancy.ledger.origin(job_id)).task
        correct_state(_outcome(list(tenancy.reader.events(job_id))), tenancy.app.tasks[task])
        self._delete_if_purged(tenancy, job_id, tenancy.ledger.is_purged(job_id))

    def _note_settled(self, tenancy: Tenancy, job_id: str) -> None:
        """Note that later messages of the job need nothing."""
        self._delete_if_purged(tenancy, job_id, tenancy.settle(job_id))

    def _delete_if_purged(self, tenancy: Tenancy, job_id: str, ask: RedisCall[bool]) -> None:
        """Delete the result of a purged job: ours may have been stored just after the purge."""
        if run_call(self._redis, ask):
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
