"""Hands finished jobs back to Celery: the result from the stream, then the tracer, then the ack."""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from traceback import format_tb
from typing import NamedTuple, ParamSpec, TypeVar

import structlog
from celery import Celery
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.errors import GenerationError
from llama_herd.tasks.call import run
from llama_herd.tasks.generate import correct
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.passing import passes
from llama_herd.tasks.result import Result
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.offer import refusal

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

NUM_THREADS = 2

#: Pause between two tries of a Redis that does not answer.
RETRY_S = 0.5

#: How long a stopping worker waits for results that are being stored.
STOP_S = 2.0


class Stopped(Exception):
    """The worker stops, and Redis does not answer."""


class Settlement(NamedTuple):
    """A job that has its final event, and the messages to settle with its result.

    Without any, Celery has ended the task by itself.
    """

    job_id: str
    deliveries: list[Delivery]


class Finisher:
    """Settles the deliveries of jobs whose final event is in the ledger.

    The result is always folded from the stream, so it cannot differ from what subscribers have read, whoever
    wrote it and however often the job's message comes back.
    """

    def __init__(self, redis: Redis, ledger: Ledger, app: Celery) -> None:
        """`app` knows where the tenant's results are."""
        self._redis = redis
        self._ledger = ledger
        self._app = app
        self._inbox: SimpleQueue[Settlement | None] = SimpleQueue()
        self._is_stopping = threading.Event()
        # Daemons: a result backend that does not answer must not hold up the end of the process.
        self._threads = [
            threading.Thread(target=self._run, name=f"finisher-{number}", daemon=True)
            for number in range(NUM_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def settle(self, job_id: str, deliveries: list[Delivery]) -> None:
        """Settle one delivery, acknowledge its doubles; returns at once."""
        self._inbox.put(Settlement(job_id, deliveries))

    def stop(self) -> None:
        """Finish what is under way; messages that could not be settled come back and are settled then."""
        self._is_stopping.set()
        for _ in self._threads:
            self._inbox.put(None)
        until_s = monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - monotonic()))

    def _run(self) -> None:
        while (settlement := self._inbox.get()) is not None:
            self._settle(*settlement)

    def _settle(self, job_id: str, deliveries: list[Delivery]) -> None:
        """No message is acknowledged before Celery knows how the job ended, unless Redis never takes that."""
        with suppress(Stopped):
            try:
                deliveries = self._finish(job_id, deliveries)
            except Stopped:
                raise
            except Exception as error:
                self._fail(job_id, deliveries, error)
            for delivery in deliveries:
                delivery.acknowledge()

    def _finish(self, job_id: str, deliveries: list[Delivery]) -> list[Delivery]:
        """Have Celery's tracer tell how the job ended; what is left is to be acknowledged."""
        outcome = self._insist(self._outcome, job_id)
        self._insist(self._tell_celery, outcome, deliveries)
        self._insist(self._close, job_id, is_settled=bool(deliveries))
        _log_end(outcome)
        return deliveries[1:]

    def _fail(self, job_id: str, deliveries: list[Delivery], error: Exception) -> None:
        """Store that the job's result cannot be stored: who waits for it would wait for ever."""
        refused = refusal(error)
        # Not the error's own words, which may be the job's.
        is_ours = not isinstance(error, GenerationError | RedisError)
        stack = "".join(format_tb(error.__traceback__)) if is_ours else None
        log.error("job's result is refused", job_id=job_id, error=str(refused), stack=stack)
        try:
            for delivery in deliveries[:1]:
                self._insist(delivery.fail, refused)
            self._insist(self._close, job_id, is_settled=bool(deliveries))
        except Stopped:
            raise
        except Exception as again:
            log.error("job's failure is refused, too", job_id=job_id, error=str(refusal(again)))

    def _insist(self, act: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Try until Redis takes it. Raises Stopped, and what does not pass by itself."""
        while True:
            try:
                return act(*args, **options)
            except Exception as error:
                if not passes(error):
                    raise
                log.warning("Redis did not take a result, retrying", error=type(error).__name__)
                if self._is_stopping.wait(RETRY_S):
                    raise Stopped from None

    def _outcome(self, job_id: str) -> Result:
        events = run(self._redis, self._ledger.read(job_id))
        if not events:
            raise GenerationError("forgotten", "the job is over, but its stream is forgotten")
        return Result.from_events(events)

    def _tell_celery(self, outcome: Result, deliveries: list[Delivery]) -> None:
        if deliveries:
            deliveries[0].settle(outcome)
        else:
            correct(outcome, self._app.backend)

    def _close(self, job_id: str, *, is_settled: bool) -> None:
        """Leave nothing to do for messages of the job that come again, and no result of one that is purged.

        A purge deletes the result that it finds; this one may have been stored just after it.
        """
        note = self._ledger.settle if is_settled else self._ledger.is_purged
        if run(self._redis, note(job_id)):
            self._redis.delete(self._ledger.result_key(job_id))


def _log_end(result: Result) -> None:
    log.info(
        "job ended",
        job_id=result.job,
        finish_reason=result.finish_reason,
        tokens=len(result.ids),
        attempts=result.attempts,
        total_s=result.timings.total_s if result.timings else None,
    )
