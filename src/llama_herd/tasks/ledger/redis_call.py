"""A command or script together with the parser of its reply, and the functions that run it.

The ledger builds calls but has no connection: client and worker run the calls over theirs. If Redis has
forgotten a script (after a restart or SCRIPT FLUSH), the caller loads it again.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError, TryAgainError

from llama_herd.errors import RecordUnreadable
from llama_herd.tasks.ledger.script import Script

T = TypeVar("T")
#: A generator that yields calls, receives their answers, and returns an outcome. It yields one call, or
#: several for one round trip. An error is raised at the `yield`, unless the calls are `IndependentCalls`.
Dialogue = Generator["RedisCall[Any] | Sequence[RedisCall[Any]] | IndependentCalls", Any, T]
Argument = str | bytes | int | float
Command = tuple[Argument, ...]
#: A generator that yields the commands of one round trip, receives their replies, and returns an outcome.
Commands = Generator[list[Command], list[Any], T]


class UnreadableReply(RecordUnreadable, ResponseError):
    """A key does not contain what the call expects: llama-herd has not written it."""

    __repr__ = RecordUnreadable.__repr__  # redis-py's needs what only its own constructor sets

    @classmethod
    def for_call(cls, call: "RedisCall[Any]", error: Exception) -> Self:
        place = call.keys[0] if call.keys else "Redis"
        return cls(
            f"{place} cannot be read ({type(error).__name__}): this version has not written it. "
            "Fix: purge the job, or use the version that wrote it"
        )


#: Errors of a parser that meets an unexpected reply.
_PARSE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


#: Most times that a call is sent: its script was forgotten, or a record was replaced after it was read.
MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class RedisCall(Generic[T]):
    """A command for Redis with the parser of its reply. what: a script, or the name of a Redis command.

    found: more keys of a script, which it has found in a record, and has asked to declare.
    """

    what: Script | str
    keys: Sequence[str]
    args: Sequence[Argument]
    parse: Callable[[Any], T]
    found: Sequence[bytes] = ()

    @property
    def command(self) -> Command:
        if isinstance(self.what, str):
            return (self.what, *self.keys, *self.args)
        num_keys = len(self.keys) + len(self.found)
        return ("EVALSHA", self.what.sha, num_keys, *self.keys, *self.found, *self.args)

    def asks_for_keys(self, reply: Any) -> bool:
        """Whether a reply is that of `declare.lua`."""
        return isinstance(self.what, Script) and isinstance(reply, list) and reply[:1] == [b"declare"]

    def declaring(self, names: Sequence[bytes]) -> "RedisCall[T]":
        return replace(self, found=(*self.found, *names))


@dataclass(frozen=True, slots=True)
class IndependentCalls:
    """Calls for one round trip. The error of one takes the place of its answer, and is not raised."""

    calls: Sequence[RedisCall[Any]]


def ask(call: RedisCall[T]) -> Dialogue[T]:
    """A dialogue of one call."""
    answer: T = yield call
    return answer


def run_call(connection: redis.Redis, call: RedisCall[T]) -> T:
    """One round trip. Raises `redis.exceptions.RedisError`."""
    return run_dialogue(connection, ask(call))


def run_calls(connection: redis.Redis, calls: Sequence[RedisCall[T]]) -> list[T | ResponseError]:
    """One round trip for several independent calls.

    The error of one call stands in the place of its answer. A lost connection is raised.
    """
    return _send(connection, _calls_commands(calls))


def run_dialogue(connection: redis.Redis, dialogue: Dialogue[T]) -> T:
    """One round trip for each `yield`. Raises `redis.exceptions.RedisError` and what the dialogue raises."""
    return _send(connection, _dialogue_commands(dialogue))


def keep_loaded(connection: redis.Redis, scripts: Sequence[Script]) -> None:
    """Load the scripts that Redis has forgotten, for users who may run them but not load them."""
    known = connection.script_exists(*(script.sha for script in scripts))
    for script, is_known in zip(scripts, known, strict=True):
        if not is_known:
            connection.script_load(script.source)


async def run_dialogue_async(connection: redis.asyncio.Redis, dialogue: Dialogue[T]) -> T:
    """`run_dialogue` for asyncio."""
    return await _send_async(connection, _dialogue_commands(dialogue))


def _send(connection: redis.Redis, exchange: Commands[T]) -> T:
    """Send the commands, one round trip after the other, and return the outcome."""
    replies: Any = None
    while True:
        try:
            commands = exchange.send(replies)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        with connection.pipeline(transaction=False) as pipeline:
            _queue_commands(pipeline, commands)
            replies = pipeline.execute(raise_on_error=False)


async def _send_async(connection: redis.asyncio.Redis, exchange: Commands[T]) -> T:
    replies: Any = None
    while True:
        try:
            commands = exchange.send(replies)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        async with connection.pipeline(transaction=False) as pipeline:
            _queue_commands(pipeline, commands)
            replies = await pipeline.execute(raise_on_error=False)


def _dialogue_commands(dialogue: Dialogue[T]) -> Commands[T]:
    """Turn a dialogue into the commands of its round trips, and give it their answers."""
    go_on = partial(next, dialogue)
    while True:
        try:
            asked = go_on()
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        if isinstance(asked, IndependentCalls):
            go_on = partial(dialogue.send, (yield from _calls_commands(asked.calls)))
            continue
        answers = yield from _calls_commands([asked] if isinstance(asked, RedisCall) else asked)
        errors = [answer for answer in answers if isinstance(answer, ResponseError)]
        if errors:
            go_on = partial(dialogue.throw, errors[0])
        else:
            go_on = partial(dialogue.send, answers[0] if isinstance(asked, RedisCall) else answers)


def _calls_commands(calls: Sequence[RedisCall[T]]) -> Commands[list[T | ResponseError]]:
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
        forgotten = [place for place in unanswered if isinstance(replies[place], NoScriptError)]
        asking = [place for place in unanswered if calls[place].asks_for_keys(replies[place])]
        if forgotten:
            scripts = {call.what for call in calls if isinstance(call.what, Script)}
            yield [("SCRIPT LOAD", script.source) for script in scripts]
        for place in asking:
            calls[place] = calls[place].declaring(replies[place][1:])
        unanswered = sorted(forgotten + asking)
        if not unanswered:
            break
    for place in asking:
        replies[place] = TryAgainError(f"{calls[place].keys[0]} was replaced whenever it was read")
    answers: list[T | ResponseError] = []
    for call, reply in zip(calls, replies, strict=True):
        try:
            answers.append(reply if isinstance(reply, ResponseError) else call.parse(reply))
        except _PARSE_ERRORS as error:
            answers.append(UnreadableReply.for_call(call, error))
    return answers


def _queue_commands(pipeline: Any, commands: Sequence[Command]) -> None:
    for command in commands:
        pipeline.execute_command(*command)
