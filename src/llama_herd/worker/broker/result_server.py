"""ResultServer: whether the Redis of the results answers, where that is another one than the jobs'."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.tasks.connection.complaint import redis_complaint

log = structlog.get_logger(__name__)

#: No task has this id.
PROBE = "herd probe"


class ResultsAway(BaseException):
    """The results' Redis takes nothing now. No Exception: Celery would store any as the task's failure.

    has_sent_links: the job's links were sent before.
    """

    has_sent_links = False


class ResultServer:
    """Known by all threads, so that none waits for a Redis that another one has found away."""

    def __init__(self) -> None:
        self.is_away = False
        self._thread = threading.local()

    @contextmanager
    def owing(self) -> Iterator[None]:
        """Within the block this thread does not wait: what cannot be stored raises ResultsAway."""
        self._thread.is_owing = True
        try:
            yield
        finally:
            self._thread.is_owing = False

    def check(self) -> None:
        """Raise at once what a call would raise after some seconds, if the Redis is known to be away."""
        if self.is_away:
            self._turn_away()

    def note_failure(self, error: RedisError) -> None:
        """Note that a call has failed. Returns on a thread that may wait, and raises on the others."""
        if not self.is_away:
            log.warning("results are owed: their Redis cannot be used", reason=complaint_of(error))
        self.is_away = True
        self._turn_away()

    def look(self, redis: Redis, prefix: str) -> bool:
        """Whether it answers; one that was away is asked."""
        if self.is_away:
            try:
                try_to_store(redis, prefix)
            except RedisError:
                return False
            log.info("results are stored again")
            self.is_away = False
        return True

    def _turn_away(self) -> None:
        """A task of somebody else may wait on a thread of its own; who takes messages may not."""
        if getattr(self._thread, "is_owing", False):
            raise ResultsAway
        if threading.current_thread() is threading.main_thread():
            _refuse()


def _refuse() -> NoReturn:
    raise GenerationError(ErrorCode.REFUSED, "Celery could not store the result: its Redis is away")


def complaint_of(error: RedisError) -> str:
    """What is wrong with the results' Redis, with the fix."""
    return redis_complaint(error).replace("HERD_REDIS_URL", "HERD_RESULT_URL")


def try_to_store(redis: Redis, prefix: str) -> None:
    """Store and announce a result as Celery does, of no task and for a second. Raises RedisError."""
    key = f"{prefix}celery-task-meta-{PROBE}"
    with redis.pipeline() as pipeline:
        pipeline.execute_command("SETEX", key, 1, "")  # type: ignore[no-untyped-call]
        pipeline.publish(key, "")
        pipeline.execute()


#: That of this process.
RESULT_SERVER = ResultServer()
