"""The record of an ended job tells what its final event tells: how it ended, and by which error."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from llama_herd.tasks.ledger.answers import Cancellation, CancelReason, JobRecord
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End, Failure
from tests.tasks.herd import SWEEP, Herd, end, sweep, token

pytestmark = pytest.mark.redis

MAX_MESSAGE_BYTES = 2048


def record_of(herd: Herd, job_id: str = "a") -> JobRecord:
    record = run_call(herd.redis, herd.ledger.record(job_id))
    assert record is not None
    return record


def failed(message: str, code: str = "model_error", *, retriable: bool = True) -> EmitEntry:
    """The final event of a job that has failed after two tokens."""
    failure = Failure(code=code, message=message, retriable=retriable)
    event = End(seq=3, job="a", epoch=1, finish_reason="error", n=2, attempts=1, error=failure)
    return EmitEntry.from_event(event, 2)


def stop(herd: Herd) -> None:
    assert herd.kinds("one", end("a", 3, 2)) == ["ok"]


def fail(herd: Herd) -> None:
    assert herd.kinds("one", failed("the device was lost")) == ["ok"]


def cancel(herd: Herd) -> None:
    run_call(herd.redis, herd.ledger.cancel("a"))
    assert herd.kinds("one", end("a", 3, 2, finish_reason="cancelled")) == ["ok"]


def pass_deadline(herd: Herd) -> None:
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    herd.claim("a", "two")


def poison(herd: Herd) -> None:
    herd.redis.hset(herd.ledger.job_key("a"), "deaths", 3)
    herd.pass_lease("a")
    herd.claim("a", "two")


def lose(herd: Herd) -> None:
    herd.redis.delete(herd.ledger.job_key("a"))
    herd.claim("a", "two")


def wait_in_vain(herd: Herd) -> None:
    """No worker has ever served its queue, though one of another has been up for long."""
    assert run_call(herd.redis, herd.ledger.release("a", "one", 1))
    herd.redis.delete("herd:default:served")
    herd.redis.hset(herd.ledger.job_key("a"), "due_ms", 1)
    herd.pass_time("a", 60_000)
    herd.redis.hset(SWEEP, "awake", 1)
    sweep(replace(herd, ledger=replace(herd.ledger, unserved_timeout_s=1)))


@pytest.mark.parametrize("happen", [stop, fail, cancel, pass_deadline, poison, lose, wait_in_vain])
def test_whoever_ends_a_job_writes_into_its_record_what_the_last_event_says(
    running: Herd, happen: Callable[[Herd], None]
) -> None:
    assert (record_of(running).finish_reason, record_of(running).error) == (None, None)
    happen(running)
    last, record = running.events("a")[-1], record_of(running)
    assert isinstance(last, End)
    assert (record.finish_reason, record.error) == (last.finish_reason, last.error)
    assert record.is_final
    assert (record.error is None) == (happen in (stop, cancel, pass_deadline))


@pytest.mark.parametrize("reason", ["cancelled", "revoked", "deadline"])
def test_a_job_that_ends_while_it_waits_says_what_was_asked_for(herd: Herd, reason: CancelReason) -> None:
    herd.submit("a")
    assert run_call(herd.redis, herd.ledger.cancel("a", reason)) is Cancellation.CANCELLED
    record = record_of(herd)
    assert record.cancel == reason
    assert record.finish_reason == ("deadline" if reason == "deadline" else "cancelled")


@pytest.mark.parametrize(
    "message", ["l" * MAX_MESSAGE_BYTES, 'it said "finish_reason":"stop"\n\0 and \\ died']
)
def test_a_message_is_kept_as_it_is(running: Herd, message: str) -> None:
    running.emit("one", failed(message, "a_newer_code"))
    record = record_of(running)
    assert record.error == Failure(code="a_newer_code", message=message, retriable=True)
    assert record.finish_reason == "error"


@pytest.mark.parametrize("text", ["l", "é", "羊", "🦙", "aé羊🦙"])
def test_a_long_message_is_cut_between_two_characters(running: Herd, text: str) -> None:
    message = text * (MAX_MESSAGE_BYTES + 1)
    running.emit("one", failed(message))
    error = record_of(running).error
    assert error is not None
    assert MAX_MESSAGE_BYTES - 4 < len(error.message.encode()) <= MAX_MESSAGE_BYTES
    assert message.startswith(error.message.removesuffix("..."))
    assert error.message.endswith("...")


def test_the_error_outlives_the_events(running: Herd) -> None:
    fail(running)
    running.redis.delete(running.ledger.events_key("a"))
    error = record_of(running).error
    assert error is not None
    assert error.message == "the device was lost"


@pytest.mark.parametrize("error", [b"", b"{", b"[]", b'{"code":7}', b"\xff", b"[" * 99_999])
def test_an_error_that_cannot_be_read_is_none(running: Herd, error: bytes) -> None:
    fail(running)
    running.redis.hset(running.ledger.job_key("a"), "error", error)
    assert record_of(running).error is None


def test_an_end_that_names_no_message_ends_the_job_all_the_same(running: Herd) -> None:
    """Whatever a worker of another version writes."""
    entry = failed("x")
    odd = entry._replace(event=entry.event.replace('"message":"x"', '"message":null'))
    assert running.kinds("one", token("a", 3, 2), odd._replace(seq=4, i=3)) == ["ok", "ok"]
    record = record_of(running)
    assert (record.state, record.finish_reason, record.error) == ("failed", "error", None)
