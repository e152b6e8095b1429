"""A command or script together with the parser of its reply, and the functions that run it.

The ledger builds calls but has no connection: client and worker run the calls over theirs. What takes
several calls is a dialogue: an ordinary `async def` that awaits calls. `run_dialogue` runs it for a thread,
`run_dialogue_async` for asyncio. If Redis has forgotten a script (after a restart or SCRIPT FLUSH), the
caller loads it again.
"""

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import coroutine
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError, TryAgainError

from llama_herd.errors import RecordUnreadable
from llama_herd.tasks.connection.cancels import no_cancel_lost, take_cancel
from llama_herd.tasks.connection.complaint import is_unknown_command, names_key, wrong_type_of
from llama_herd.tasks.connection.temporary_errors import is_read_only, is_wrong_type
from llama_herd.tasks.ledger.script import Script

T = TypeVar("T")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)
#: What awaits calls, and nothing else: a coroutine, or a call itself. It has no connection.
Dialogue = Awaitable[T]
Argument = str | bytes | int | float
Command = tuple[Argument, ...]
#: A generator that yields the commands of one round trip, receives their replies, and returns an outcome.
Commands = Generator[list[Command], list[Any], T]

#: Most times that a call is sent: its script was forgotten, or a record was replaced after it was read.
MAX_ROUNDS = 4


class UnreadableReply(RecordUnreadable, ResponseError):
    """A key does not contain what the call expects: llama-herd has not written it."""

    __repr__ = RecordUnreadable.__repr__  # redis-py's needs what only its own constructor sets


#: Errors of a parser that meets an unexpected reply.
_PARSE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class RedisCall(Generic[T_co]):
    """A command for Redis with the parser of its reply. what: a script, or the name of a Redis command.

    A dialogue awaits its answer; an error of Redis is raised there.

    found: more keys of a script, which it has found in a record, and has asked to declare.
    """

    what: Script | str
    keys: Sequence[str]
    args: Sequence[Argument]
    parse: Callable[[Any], T_co]
    found: Sequence[bytes] = ()

    def __await__(self) -> Generator[Sequence["RedisCall[Any]"], list[Any], T_co]:
        (answer,) = yield (self,)
        outcome: T_co = raise_if_error(answer)
        return outcome

    @property
    def command(self) -> Command:
        if isinstance(self.what, str):
            return (self.what, *self.keys, *self.args)
        num_keys = len(self.keys) + len(self.found)
        return ("EVALSHA", self.what.sha, num_keys, *self.keys, *self.found, *self.args)

    def asks_for_keys(self, reply: Any) -> bool:
        """Whether a reply is that of `declare.lua`."""
        return isinstance(self.what, Script) and isinstance(reply, list) and reply[:1] == [b"declare"]

    def declaring(self, names: Sequence[bytes]) -> "RedisCall[T_co]":
        return replace(self, found=(*self.found, *names))


@coroutine
def _round(calls: Sequence[RedisCall[Any]]) -> Generator[Sequence[RedisCall[Any]], list[Any], list[Any]]:
    """Hand calls of one round trip to those who run the dialogue. Returns their answers, errors included."""
    return (yield calls)


async def each(calls: Sequence[RedisCall[T]]) -> list[T | ResponseError]:
    """The answers to independent calls of one round trip. The error of one takes the place of its answer."""
    return await _round(calls)


async def together(calls: Sequence[RedisCall[T]]) -> list[T]:
    """The answers to calls of one round trip. Raises the error of the first that has one."""
    return [raise_if_error(answer) for answer in await each(calls)]


async def both(first: RedisCall[T], second: RedisCall[S]) -> tuple[T, S]:
    """The answers to two calls of one round trip. Raises the error of the first that has one."""
    one, other = await _round((first, second))
    return raise_if_error(one), raise_if_error(other)


def raise_if_error(answer: T | ResponseError) -> T:
    if isinstance(answer, ResponseError):
        raise answer
    return answer


def redis_time_ms() -> RedisCall[int]:
    """The time by the clock of Redis, in unix milliseconds."""
    return RedisCall("TIME", (), (), lambda reply: 1000 * int(reply[0]) + int(reply[1]) // 1000)


def run_call(connection: redis.Redis, call: RedisCall[T]) -> T:
    """One round trip. Raises `redis.exceptions.RedisError`."""
    return run_dialogue(connection, call)


def run_calls(connection: redis.Redis, calls: Sequence[RedisCall[T]]) -> list[T | ResponseError]:
    """`each`: one round trip for several independent calls. A lost connection is raised."""
    return run_dialogue(connection, each(calls))


def run_dialogue(connection: redis.Redis, dialogue: Dialogue[T]) -> T:
    """One round trip for each `await`. Raises `redis.exceptions.RedisError` and what the dialogue raises.

    A Redis that has become a replica is left: the next call connects to whoever is the primary by then.
    """
    exchange, replies = _commands_of(dialogue), None
    while True:
        try:
            commands = exchange.send(replies)  # type: ignore[arg-type]  # a generator begins with None
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        with _nothing_left_unread(connection), connection.pipeline(transaction=False) as pipeline:
            _queue_commands(pipeline, commands)
            replies = pipeline.execute(raise_on_error=False)
        if any(map(is_read_only, replies)):
            connection.connection_pool.disconnect(inuse_connections=False)


@contextmanager
def _nothing_left_unread(connection: redis.Redis) -> Iterator[None]:
    """Close what no thread uses if a signal's handler raises in the block, as Celery does at a soft limit.

    redis-py puts the connection back with its answer unread, which the next call would take for its own.
    """
    try:
        yield
    except RedisError:
        raise
    except BaseException:
        connection.connection_pool.disconnect(inuse_connections=False)
        raise


async def run_dialogue_async(connection: redis.asyncio.Redis, dialogue: Dialogue[T]) -> T:
    """`run_dialogue` for asyncio."""
    exchange, replies = _commands_of(dialogue), None
    while True:
        try:
            commands = exchange.send(replies)  # type: ignore[arg-type]  # a generator begins with None
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        async with connection.pipeline(transaction=False) as pipeline:
            _queue_commands(pipeline, commands)
            await take_cancel()
            with no_cancel_lost():
                replies = await pipeline.execute(raise_on_error=False)
        if any(map(is_read_only, replies)):
            await connection.connection_pool.disconnect(inuse_connections=False)


def keep_loaded(connection: redis.Redis, scripts: Sequence[Script]) -> None:
    """Load the scripts that Redis has forgotten, for users who may run them but not load them."""
    known = connection.script_exists(*(script.sha for script in scripts))
    for script, is_known in zip(scripts, known, strict=True):
        if not is_known:
            connection.script_load(script.source)


def _commands_of(dialogue: Dialogue[T]) -> Commands[T]:
    """Turn a dialogue into the commands of its round trips, and give it their answers."""
    rounds = dialogue.__await__()
    go_on: Callable[[], Sequence[RedisCall[Any]]] = partial(next, rounds)
    while True:
        try:
            calls = go_on()
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        go_on = partial(rounds.send, (yield from _commands_of_calls(calls)))


def _commands_of_calls(calls: Sequence[RedisCall[T]]) -> Commands[list[T | ResponseError]]:
    """Turn calls of one round trip into commands, and their replies into answers.

    A call is sent again if Redis had forgotten its script, which is then loaded, or if its script asks for
    more keys.
    """
    calls, replies = list(calls), list[Any]([None] * len(calls))
    unanswered: Sequence[int] = range(len(calls))
    for _ in range(MAX_ROUNDS):
        sent = yield [calls[place].command for place in unanswered]
        for place, reply in zip(unanswered, sent, strict=True):
            replies[place] = reply
            if isinstance(reply, ResponseError):
                reply.__traceback__ = None  # redis-py has raised it, and the frames hold who asks
        forgotten = [place for place in unanswered if isinstance(replies[place], NoScriptError)]
        asking = [place for place in unanswered if calls[place].asks_for_keys(replies[place])]
        if forgotten:
            scripts = {call.what for call in calls if isinstance(call.what, Script)}
            loaded = yield [("SCRIPT LOAD", script.source) for script in scripts]
            if unknown := next(filter(is_unknown_command, loaded), None):
                raise unknown  # it says more than that scripts are missing
        for place in asking:
            calls[place] = calls[place].declaring(replies[place][1:])
        unanswered = sorted(forgotten + asking)
        if not unanswered:
            break
    for place in asking:
        replies[place] = TryAgainError(f"{calls[place].keys[0]} was replaced whenever it was read")
    answers: list[T | ResponseError] = []
    for call, reply in zip(calls, replies, strict=True):
        answers.append(_answer(call, reply))
    return answers


def _answer(call: RedisCall[T], reply: Any) -> T | ResponseError:
    if isinstance(reply, ResponseError):
        return wrong_type_of(call.keys) if is_wrong_type(reply) and not names_key(reply) else reply
    try:
        return call.parse(reply)
    except _PARSE_ERRORS as error:
        place = call.keys[0] if call.keys else "Redis"
        is_of_job = place.endswith(("}:job", "}:events"))
        fix = "purge the job" if is_of_job else "delete what somebody else has written there"
        return UnreadableReply(
            f"{place} cannot be read ({type(error).__name__}): this version has not written it. "
            f"Fix: {fix}, or use the version that wrote it"
        )


def _queue_commands(pipeline: Any, commands: Sequence[Command]) -> None:
    for command in commands:
        pipeline.execute_command(*command)
