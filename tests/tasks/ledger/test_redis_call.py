"""Calls over a real connection: forgotten scripts, errors of one among many, the asyncio twins."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from threading import get_ident
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.client import Pipeline
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError, TryAgainError

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.connection.temporary_errors import is_temporary
from llama_herd.tasks.ledger.answers import Cancellation, Submission, Submitted, Unknown, Yours
from llama_herd.tasks.ledger.job_lists import JobLists
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import (
    MAX_ROUNDS,
    RedisCall,
    UnreadableReply,
    both,
    each,
    redis_time_ms,
    run_call,
    run_calls,
    run_dialogue,
    run_dialogue_async,
    together,
)
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import JOB, QUEUE, Herd, started

pytestmark = pytest.mark.redis
LEDGER = Ledger()


def submit(job_id: str) -> RedisCall[Submitted]:
    return LEDGER.submit(job_id, JOB, Envelope.for_job(job_id, QUEUE))


def in_asyncio(redis_url: str, calls: Sequence[RedisCall[Any]]) -> list[Any]:
    async def dialogue() -> list[Any]:
        return [await calls[0], *await each(calls[1:])]

    async def talk() -> list[Any]:
        async with AsyncRedis.from_url(redis_url) as connection:
            return await run_dialogue_async(connection, dialogue())

    return asyncio.run(talk())


def test_a_script_that_redis_forgot_is_loaded_again(redis: Redis) -> None:
    assert run_call(redis, submit("a")).kind is Submission.SUBMITTED
    redis.script_flush()
    assert run_call(redis, submit("a")).kind is Submission.EXISTS


def test_forgotten_scripts_in_a_pipeline_run_once_and_in_place(redis: Redis) -> None:
    run_call(redis, LEDGER.claim("x", "one"))
    calls: list[RedisCall[Any]] = [submit("a"), LEDGER.claim("zz", "one"), LEDGER.num_pending(), submit("b")]
    answers: list[Any] = run_calls(redis, calls)
    first, unknown, num_pending, last = answers
    assert (first.kind, unknown, last.kind) == (Submission.SUBMITTED, Unknown(), Submission.SUBMITTED)
    # It knew the claim and the count at once, and ran the submits in a second round.
    assert num_pending == 0
    assert redis.llen(QUEUE) == 2


def test_an_error_of_one_call_leaves_the_others_alone(redis: Redis) -> None:
    redis.set(LEDGER.job_key("a"), "not a record")
    failed, done = run_calls(redis, [submit("a"), submit("b")])
    assert isinstance(failed, ResponseError)
    assert isinstance(done, Submitted)
    assert done.kind is Submission.SUBMITTED
    with pytest.raises(ResponseError):
        run_call(redis, submit("a"))


def test_an_error_at_a_spoilt_key_names_the_keys_of_its_call(redis: Redis) -> None:
    """Redis says neither which key holds another type, nor which one was asked for."""
    redis.set("herd:default:ended", "x")
    with pytest.raises(ResponseError, match='WRONGTYPE one of "herd:default:ended"'):
        run_call(redis, JobLists().members("ended", None, 1))


def test_an_error_that_is_an_answer_holds_no_frame_of_who_has_asked(redis: Redis, redis_url: str) -> None:
    redis.set("word", "no number")
    calls: list[RedisCall[Any]] = [redis_time_ms(), RedisCall("INCR", ("word",), (), int)]
    for _, error in (run_calls(redis, calls), in_asyncio(redis_url, calls)):
        assert isinstance(error, ResponseError)
        assert error.__traceback__ is None


def test_no_calls_no_answers(redis: Redis) -> None:
    assert run_calls(redis, []) == []


def test_the_twins_answer_alike(redis: Redis, redis_url: str) -> None:
    redis.set(LEDGER.job_key("bad"), "not a record")
    calls: list[RedisCall[Any]] = [submit("a"), submit("bad"), submit("b"), LEDGER.num_pending()]
    first, failed, second, num_pending = in_asyncio(redis_url, calls)
    assert (first.kind, second.kind) == (Submission.SUBMITTED, Submission.SUBMITTED)
    assert isinstance(failed, ResponseError)
    assert num_pending == 2
    redis.script_flush()
    assert in_asyncio(redis_url, [submit("a"), submit("b")])[1].kind is Submission.EXISTS


async def dialogue_of_all_kinds() -> list[Any]:
    """Asks in every way, of a Redis in which the record of one job is broken."""
    first = await submit("a")
    second, num_pending = await both(submit("a"), LEDGER.num_pending())
    failed, done = await each([submit("bad"), submit("b")])
    assert isinstance(done, Submitted)
    raised = []
    for asked in (submit("bad"), together([submit("c"), submit("bad")]), both(submit("c"), submit("bad"))):
        try:
            await asked
        except ResponseError as error:
            raised.append(error)
    nothing: list[int] = await together([])
    return [first.kind, second.kind, num_pending, type(failed), done.kind, len(raised), nothing]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_dialogue_gets_answers_and_errors_as_it_asks_for_them(
    redis: Redis, redis_url: str, is_async: bool
) -> None:
    async def talk() -> list[Any]:
        async with AsyncRedis.from_url(redis_url) as connection:
            return await run_dialogue_async(connection, dialogue_of_all_kinds())

    redis.set(LEDGER.job_key("bad"), "not a record")
    outcome = asyncio.run(talk()) if is_async else run_dialogue(redis, dialogue_of_all_kinds())
    new, again = Submission.SUBMITTED, Submission.EXISTS
    assert outcome == [new, again, 1, ResponseError, new, 3, []]
    # What stands beside an error is done.
    assert run_call(redis, submit("c")).kind is again


def test_an_error_that_a_dialogue_does_not_expect_ends_it(redis: Redis) -> None:
    async def impatient() -> None:
        await submit("bad")
        raise AssertionError("it went on")

    redis.set(LEDGER.job_key("bad"), "not a record")
    with pytest.raises(ResponseError):
        run_dialogue(redis, impatient())


def test_a_lost_connection_is_an_error_of_redis_py() -> None:
    nowhere = connect("unix:///nonexistent.sock", tries=0)
    with pytest.raises(ConnectionError):
        run_call(nowhere, submit("a"))
    with pytest.raises(ConnectionError):
        run_calls(nowhere, [submit("a")])


def test_an_error_of_what_cannot_be_read_can_be_shown() -> None:
    assert repr(UnreadableReply("x holds y")) == "UnreadableReply('x holds y')"


@pytest.mark.parametrize(
    ("key", "fix"), [("{a}:job", "purge the job"), ("{a}:events", "purge the job"), ("outbox", "delete what")]
)
def test_a_job_may_be_purged_where_its_key_cannot_be_read_and_nothing_else(
    redis: Redis, key: str, fix: str
) -> None:
    (told,) = run_calls(redis, [RedisCall("HGETALL", [f"herd:default:{key}"], [], int)])
    assert re.search(rf"{re.escape(key)} cannot be read \(TypeError\).* Fix: {fix}", str(told))


def between_rounds(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[int]:
    """Let something happen before the second round trip. Returns how many commands each round trip has."""
    sizes, execute, own = list[int](), Pipeline.execute, get_ident()

    def meddling(pipeline: Any, *, raise_on_error: bool) -> list[Any]:
        if get_ident() != own:  # a thread of an earlier test that still ends
            return execute(pipeline, raise_on_error=raise_on_error)
        sizes.append(len(pipeline.command_stack))
        if len(sizes) == 2:
            with monkeypatch.context() as undisturbed:
                undisturbed.setattr(Pipeline, "execute", execute)
                act()
        return execute(pipeline, raise_on_error=raise_on_error)

    monkeypatch.setattr(Pipeline, "execute", meddling)
    return sizes


def test_a_script_that_finds_keys_in_a_record_is_called_again_with_them(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[RedisCall[Any]] = [submit("a"), submit("b"), LEDGER.claim("b", "one"), LEDGER.cancel("x")]
    run_calls(redis, ready)
    sizes = between_rounds(monkeypatch, lambda: None)
    calls = [LEDGER.cancel("a"), LEDGER.cancel("b"), LEDGER.cancel("x")]
    assert run_calls(redis, calls) == [Cancellation.CANCELLED, Cancellation.ASKED, Cancellation.UNKNOWN]
    assert sizes == [3, 1], "only where it takes more keys than were given"


def test_a_job_that_was_replaced_after_the_look_is_looked_at_again(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "herd.other"

    def replaced() -> None:
        run_call(redis, LEDGER.purge("a"))
        redis.delete(LEDGER.job_key("a"))
        run_call(redis, LEDGER.submit("a", JOB, Envelope.for_job("a", other)))

    run_call(redis, submit("a"))
    run_call(redis, LEDGER.cancel("x"))
    sizes = between_rounds(monkeypatch, replaced)
    assert run_call(redis, LEDGER.cancel("a")) is Cancellation.CANCELLED
    assert sizes == [1, 1, 1]
    assert redis.hgetall(LEDGER.key("waiting")) == {}
    assert redis.exists(LEDGER.line_key(QUEUE), LEDGER.line_key(other), LEDGER.key("pending")) == 0


def test_a_claim_of_a_job_of_another_queue_counts_where_the_job_was_counted(redis: Redis) -> None:
    """Its record names a queue, its message came from another one."""
    run_call(redis, LEDGER.submit("a", JOB, Envelope.for_job("a", "herd.other")))
    assert isinstance(run_call(redis, LEDGER.claim("a", "one", queue=QUEUE)), Yours)
    assert redis.exists(LEDGER.line_key("herd.other"), LEDGER.key("pending")) == 0
    assert redis.hkeys(LEDGER.key("waiting")) == [b"herd.other:taken", b"herd.other:since"]


def test_a_claim_that_is_made_again_counts_a_death_once(redis: Redis) -> None:
    herd = Herd(redis, LEDGER)
    herd.submit("a")
    herd.claim("a")
    herd.emit("one", started("a"))
    herd.pass_lease("a")
    again = run_call(redis, LEDGER.claim("a", "two", queue="herd.other"))
    assert isinstance(again, Yours)
    assert again.deaths == 1


def test_what_left_a_list_after_the_look_is_not_told(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    run_calls(redis, [submit("a"), submit("b")])
    between_rounds(monkeypatch, lambda: run_call(redis, LEDGER.cancel("a")))
    page = run_dialogue(redis, JobLists().jobs("pending", most=9))
    assert [row.job_id for row in page.rows] == ["b"]
    assert page.next is None


def test_a_script_that_asks_for_more_and_more_keys_is_left(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "return {'declare', 'k' .. #KEYS}"
    monkeypatch.setattr(Script, "source", property(lambda script: source))
    monkeypatch.setattr(Script, "sha", property(lambda script: sha1(source.encode()).hexdigest()))
    sizes = between_rounds(monkeypatch, lambda: None)
    with pytest.raises(TryAgainError) as raised:
        run_call(redis, LEDGER.claim("a", "one"))
    assert is_temporary(raised.value)
    assert len(sizes) <= MAX_ROUNDS + 1


@pytest.fixture
def replica(redis: Any) -> Iterator[Any]:
    """A Redis that is a replica by now, of one that is not there."""
    redis.ping()
    redis.replicaof("127.0.0.1", "1")
    yield redis
    redis.replicaof("NO", "ONE")


def test_a_redis_that_has_become_a_replica_is_left(replica: Any) -> None:
    """Its address may lead to the new primary by now, and the connection still does not."""
    before = replica.client_id()
    assert replica.client_id() == before
    with pytest.raises(ReadOnlyError):
        run_call(replica, LEDGER.unmark("a"))
    assert replica.client_id() != before


def test_asyncio_leaves_it_too(replica: Any, redis_server: EmbeddedRedis) -> None:
    async def ids() -> tuple[int, int]:
        async with AsyncRedis.from_url(redis_server.url) as connection:
            before = await connection.client_id()
            with pytest.raises(ReadOnlyError):
                await run_dialogue_async(connection, LEDGER.unmark("a"))
            return before, await connection.client_id()

    before, after = asyncio.run(ids())
    assert before != after
