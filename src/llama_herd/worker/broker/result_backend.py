"""Celery's writes to Redis: retried while the error may pass, otherwise refused in one short line.

Celery judges errors by type alone, and would retry for ever what Redis will never accept. What a Redis of the
results' own does not take is not retried here, but owed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence as Rows
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import structlog
from celery.backends.redis import RedisBackend
from celery.states import SUCCESS
from redis import Redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.commands.core import Script
from redis.exceptions import (
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, HerdError
from llama_herd.ops.logs import error_name
from llama_herd.tasks.connection.broken_connections import LARGE_BYTES, BrokenConnections
from llama_herd.tasks.connection.temporary_errors import is_temporary, redis_message
from llama_herd.worker.broker.chord_claims import ChordClaims
from llama_herd.worker.broker.full_redis import FREE_WRITE, write_on
from llama_herd.worker.broker.result_server import RESULT_SERVER, ResultsAway, ResultServer
from llama_herd.worker.insisting import insist

log = structlog.get_logger(__name__)

#: The setting of Redis above which a value makes it close the connection.
LIMIT = "proto-max-bulk-len"

#: What Redis says before it closes the connection. Most clients are still sending then, and never read it.
TOO_LARGE = "invalid bulk length"

#: Most characters of Redis' complaint in a result or a log.
MAX_SAID = 200

#: How long a Redis that has only results may take to answer, twice. Then it is away, and asked each second.
ANSWER_S = 2.0
REMOTE = {
    "socket_timeout": ANSWER_S,
    "socket_connect_timeout": ANSWER_S,
    "retry": Retry(NoBackoff(), 1),
    "retry_on_error": [ConnectionError, TimeoutError],  # redis-py 6 does so by itself
    "retry_on_timeout": False,  # it would add to this list with each connection
}


def storing_error(error: BaseException) -> GenerationError:
    """The error in one short line, without the data that was sent."""
    if isinstance(error, GenerationError):
        return error
    words = " ".join(redis_message(error).split()) if isinstance(error, RedisError) else type(error).__name__
    return GenerationError(
        ErrorCode.REFUSED, f"Celery could not store the result or send a link: {words[:MAX_SAID]}"
    )


class StoringRedis(Redis):
    """Retries each command until Redis accepts it. Raises GenerationError if it never will."""

    insists = True
    #: Where the results have a Redis of their own.
    server: ResultServer | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        execute: Callable[..., Any] = super().execute_command
        [reply] = _insist(self, lambda: [execute(*args, **options)], [args])
        return reply

    def register_script(self, script: Any) -> Script:
        """Celery's scripts, of chords, go on in a full Redis."""
        return super().register_script(script if self.server else f"{FREE_WRITE}{script}")

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> "_Pipeline":
        pipeline = _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.insists, pipeline.server = self.insists, self.server
        return pipeline


class SendingRedis(StoringRedis):
    """Leaves retries to Celery, where the error may pass."""

    insists = False


class RemoteRedis(StoringRedis):
    """The results' own Redis: who may not wait for it gets ResultsAway."""

    server = RESULT_SERVER


class _Pipeline(Pipeline):
    """A pipeline that is retried until Redis accepts it. Raises GenerationError if it never will."""

    insists = True
    server: ResultServer | None = None

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = list(self.command_stack)

        def act() -> list[Any]:
            self.command_stack = list(stack)  # redis-py empties it at each try
            return Pipeline.execute(self, raise_on_error)

        return _insist(self, act, [args for args, _ in stack])


class OnePool:
    """Has the apps of all tenants in this process store their results over the same connections."""

    _pools: ClassVar[dict[str, Any]] = {}

    def _get_pool(self, **params: Any) -> Any:
        name = f"{type(self).__name__} {sorted(params.items())!r}"
        if name not in self._pools:
            self._pools[name] = super()._get_pool(**params)  # type: ignore[misc]
        return self._pools[name]


class ResultValue(NamedTuple):
    """A result as Celery stores it, and for how long; 0: for ever."""

    value: bytes = b""
    life_s: int = 0


#: Of a job whose result nobody wants, or is stored.
NO_VALUE = ResultValue()


@dataclass
class Settling:
    """The job that a thread settles, and for how long its result is kept; None: as Celery's app says.

    result: what who settles it is to store, with the note that it is settled.
    """

    job_id: str
    life_s: int | None
    result: ResultValue = NO_VALUE


_SETTLING: ContextVar[Settling | None] = ContextVar("settling", default=None)


@contextmanager
def settling(job_id: str, life_s: int | None) -> Iterator[Settling]:
    """Within it nobody else settles the job, and what is stored lives for so long. Chords do not."""
    now = Settling(job_id, life_s)
    token = _SETTLING.set(now)
    try:
        yield now
    finally:
        _SETTLING.reset(token)


class ResultBackend(OnePool, ChordClaims, RedisBackend):  # type: ignore[misc]
    """Celery's results and chords in Redis."""

    def on_task_call(self, *_: Any) -> None:
        """Do nothing: Celery would listen for the result of each task that is sent, before anybody waits."""

    def add_pending_result(self, result: Any, *args: Any, **options: Any) -> Any:
        """Listen for a result, unless it is that of a link: Redis would keep what nobody reads."""
        return result if _SETTLING.get() else super().add_pending_result(result, *args, **options)

    def mark_as_failure(self, task_id: str, exc: BaseException, *args: Any, **options: Any) -> None:
        """Store a failure. A job fails by an error of ours alone: any other is that of a link."""
        now = _SETTLING.get()
        if now is not None and now.job_id == task_id and not isinstance(exc, HerdError):
            exc = storing_error(exc)
        super().mark_as_failure(task_id, exc, *args, **options)

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **options: Any,
    ) -> Any:
        """Store a result. Celery looks first whether a success is there, which stays.

        That of a job that is being settled would only be the same: each is folded from the stream. It is
        left to who settles the job, unless it may break the connection, or a chord goes on with it.
        """
        now = _SETTLING.get()
        if now is None or now.job_id != task_id or state != SUCCESS:
            return super()._store_result(task_id, result, state, traceback, request, **options)
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        key, value = self.get_key_for_task(task_id), self.encode({**meta, "task_id": task_id})
        if is_remote(self) or len(value) >= LARGE_BYTES or (request and request.chord):
            self._set_with_state(key, value, state)
        else:
            now.result = ResultValue(value, int(now.life_s or self.expires or 0))
        return result

    def _set(self, key: str, value: bytes, *expires: int | None) -> None:
        """Store and announce a result, as Celery does. `expires`: newer versions of Celery give it."""
        now = _SETTLING.get()
        if now is None or now.life_s is None:
            super()._set(key, value, *expires)
            return
        with self.client.pipeline() as pipeline:
            pipeline.setex(key, now.life_s, value)
            pipeline.publish(key, value)
            pipeline.execute()

    def _get_client(self) -> type[Redis]:
        return StoringRedis

    def _call_task_errbacks(self, request: Any, exc: BaseException, traceback: Any) -> None:
        """Call or send the errbacks; if that cannot be done, the task keeps its own error.

        Celery would store what is wrong with the errback in its place.
        """
        try:
            super()._call_task_errbacks(request, exc, traceback)
        except Exception as error:
            if isinstance(error, RedisError) and is_temporary(error):
                raise
            log.error("errback not sent", task_id=request.id, error=error_name(error))


def is_remote(backend: Any) -> bool:
    """Whether a backend is in another Redis than the jobs."""
    return isinstance(backend, Remote)


class Remote:
    """Makes a backend that of another Redis than the jobs', which may be away for hours."""

    def _get_client(self) -> type[Redis]:
        return RemoteRedis

    def _params_from_url(self, *args: Any, **options: Any) -> dict[str, Any]:
        return {**super()._params_from_url(*args, **options), **REMOTE}  # type: ignore[misc]

    def mark_as_done(self, *args: Any, **options: Any) -> None:
        """Store a result. Celery has sent the links before."""
        try:
            super().mark_as_done(*args, **options)  # type: ignore[misc]
        except ResultsAway as away:
            away.has_sent_links = True
            raise


class RemoteResultBackend(Remote, ResultBackend):
    """Celery's results and chords in a Redis of their own."""


def _insist(
    client: StoringRedis | _Pipeline, act: Callable[[], list[Any]], commands: Rows[Rows[Any]]
) -> list[Any]:
    """Repeat writes until Redis accepts them. Raises GenerationError if it never will."""
    breaks, num_bytes = BrokenConnections(), max(map(_largest, commands), default=0)
    if client.server is not None:
        client.server.check()

    def write() -> list[Any]:
        try:
            return act()
        except OutOfMemoryError:
            if client.server is not None:  # it has nothing but results, and no jobs that would go on
                raise
        return write_on(without_retries(client), commands)

    def judge(error: Exception) -> None:
        if isinstance(error, NoScriptError) or not isinstance(error, RedisError):
            raise error  # redis-py loads a missing script
        if num_bytes >= LARGE_BYTES:
            breaks.note(without_retries(client), error)
        if breaks.are_no_accident or TOO_LARGE in redis_message(error):
            raise GenerationError(ErrorCode.REFUSED, _too_large(client, num_bytes)) from None
        may_pass = is_temporary(error)
        is_shut = may_pass or isinstance(error, NoPermissionError)
        if client.server is not None and is_shut and not breaks.num:
            client.server.note_failure(error)
            return
        if not may_pass:
            raise storing_error(error) from None
        if not client.insists and not breaks.num:
            raise error

    return insist(write, "a result", judge=judge)


def _largest(parts: Iterable[Any]) -> int:
    return max((len(part) for part in parts if isinstance(part, str | bytes)), default=0)


def _too_large(client: Redis, num_bytes: int) -> str:
    """The complaint, with the size and, if our user may read it, the limit."""
    try:
        limit = int(without_retries(client).config_get(LIMIT)[LIMIT] or 0)
    except (RedisError, KeyError, ValueError):
        limit = 0
    known = f" of {limit:,} bytes" if 0 < limit <= num_bytes else ""
    return (
        f"Celery's result or link has {num_bytes:,} bytes, and Redis closes the connection at that size. "
        f"Fix: raise its {LIMIT}{known}, or ask for fewer tokens, outputs or logprobs"
    )


def without_retries(client: Redis) -> Redis:
    """The same connections, for calls that may fail."""
    return Redis(connection_pool=client.connection_pool)
