"""A call is repeated only if it may succeed later."""

from collections.abc import Callable
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    DataError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from llama_herd.tasks.connection.temporary_errors import is_temporary, redis_message
from llama_herd.tasks.ledger.answers import Emission, Emitted

WRITE = "return redis.call('SET', KEYS[1], 'value')"
WRITE_GUARDED = "return redis.pcall('SET', KEYS[1], 'value').err"


def by_command(redis: Any) -> Any:
    return redis.set("key", "value")


def by_script(redis: Any) -> Any:
    return redis.eval(WRITE, 1, "key")


def by_transaction(redis: Any) -> Any:
    with redis.pipeline() as pipeline:
        return pipeline.set("key", "value").publish("channel", "value").execute()


WRITERS = [by_command, by_script, by_transaction]


def refused(write: Callable[[Any], Any], redis: Any) -> RedisError:
    with pytest.raises(RedisError) as caught:
        write(redis)
    return caught.value


@pytest.fixture(params=["full", "too few replicas", "replica"])
def closed_redis(request: pytest.FixtureRequest, redis: Any) -> Any:
    """A Redis that takes nothing for a while."""
    match request.param:
        case "full":
            redis.config_set("maxmemory", 1)
            yield redis
            redis.config_set("maxmemory", 0)
        case "too few replicas":
            redis.config_set("min-replicas-to-write", 1)
            yield redis
            redis.config_set("min-replicas-to-write", 0)
        case _:
            redis.replicaof("127.0.0.1", "1")
            yield redis
            redis.replicaof("NO", "ONE")


@pytest.mark.redis
@pytest.mark.parametrize("write", WRITERS)
def test_a_redis_that_takes_nothing_for_a_while_passes(
    closed_redis: Any, write: Callable[[Any], Any]
) -> None:
    assert is_temporary(refused(write, closed_redis))


@pytest.mark.redis
def test_a_script_that_catches_such_an_error_tells_it(closed_redis: Any) -> None:
    answer: Any = closed_redis.eval(WRITE_GUARDED, 1, "key")
    assert Emitted(Emission.ERROR, reason=answer.decode()).is_full


@pytest.mark.redis
@pytest.mark.parametrize(
    "command",
    [
        ("INCR", "list"),
        ("EVAL", "return redis.call('INCR', KEYS[1])", 1, "list"),
        ("ZADD", "scores", "x", "member"),
        ("SET", "key"),
        ("-OOM told", "-OOM told"),
    ],
)
def test_what_is_wrong_with_a_call_stays_so(redis: Any, command: tuple[str | int, ...]) -> None:
    redis.lpush("list", "value")
    assert not is_temporary(refused(lambda redis: redis.execute_command(*command), redis))


@pytest.mark.redis
def test_what_a_refused_command_holds_is_not_what_redis_says(redis: Any) -> None:
    def write(redis: Any) -> Any:
        with redis.pipeline() as pipeline:
            return pipeline.execute_command("ZADD", "scores", "x", "a secret: -OOM told").execute()

    error = refused(write, redis)
    assert "secret" in str(error)
    assert not is_temporary(error)
    assert redis_message(error) == "value is not a valid float"


@pytest.mark.redis
def test_a_script_that_redis_has_forgotten_passes(redis: Any) -> None:
    assert is_temporary(refused(lambda redis: redis.evalsha("0" * 40, 0), redis))


@pytest.mark.parametrize(
    "text",
    [
        "MISCONF Redis is configured to save RDB snapshots",
        "BUSY Redis is busy running a script.",
        "MASTERDOWN Link with MASTER is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "Transaction discarded because of: READONLY You can't write against a read only replica.",
        "Error running script (call to f_a): @user_script:70: @user_script: 70: -READONLY You can't write",
        "Error running script (call to f_a): @user_script:1: Script killed by user with SCRIPT KILL...",
    ],
)
def test_what_a_redis_says_that_is_busy_elsewhere_passes(text: str) -> None:
    assert is_temporary(ResponseError(text))


@pytest.mark.parametrize(
    "text",
    [
        "BUSYGROUP Consumer Group name already exists",
        "BUSYKEY Target key name already exists.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "unknown command 'BUSY', with args beginning with: 'OOM x'",
        "Error running script (call to f_a): @user_script:3: user_script:3: attempt to index a nil value",
    ],
)
def test_a_word_that_only_looks_like_a_code_does_not_pass(text: str) -> None:
    assert not is_temporary(ResponseError(text))


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), TimeoutError("late"), BusyLoadingError("loading")]
)
def test_a_lost_connection_passes_also_as_kombu_tells_it(error: RedisError) -> None:
    wrapped = OperationalError(str(error))
    wrapped.__cause__ = error
    assert is_temporary(error)
    assert is_temporary(wrapped)


@pytest.mark.parametrize(
    "error",
    [
        NoPermissionError("this user has no permissions to run the 'set' command"),
        InvalidResponse("Protocol Error: b'x'"),
        DataError("Invalid input of type: 'dict'"),
        ValueError("READONLY in a prompt"),
        OperationalError("READONLY in a prompt"),
    ],
)
def test_a_right_that_is_missing_and_a_bad_value_do_not_pass(error: Exception) -> None:
    assert not is_temporary(error)
