"""Calls that read what Redis has of jobs, and change nothing."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from llama_herd.tasks.ledger.answers import JobOrigin, JobRecord, Place, StreamPart
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import number, number_or_none, rate_per_s, text, text_or_none
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.protocol.events import ANSWER_FIELDS, Event, Failure, parse_event
from llama_herd.tasks.protocol.message import model_of, trace_id_of
from llama_herd.tasks.protocol.priority import lists_of

#: Start of a stream, as XRANGE takes it.
FIRST = "-"


@dataclass(frozen=True)
class JobReads(Keys):
    """All calls that read one tenant's jobs: records, events, places, numbers."""

    def read(self, job_id: str, after: int = 0, limit: int = 0) -> RedisCall[list[Event]]:
        """The events of a job after event number `after`, at most `limit` of them. 0: all."""
        span = (f"({after}-0" if after else "-", "+")
        return RedisCall(
            "XRANGE",
            (self.events_key(job_id),),
            (*span, "COUNT", limit) if limit else span,
            lambda reply: [parse_event(fields[b"e"]) for _, fields in reply],
        )

    def read_part(
        self, job_id: str, start: str, part_bytes: int, most_bytes: int, *, with_scores: bool
    ) -> RedisCall[StreamPart]:
        """Events of a job from `start` on, until they are `part_bytes` long.

        An event of more than `most_bytes` is an error, and so is anything that workers do not write.
        """
        return call(
            "read",
            read_part,
            job=self.job_key(job_id),
            events=self.events_key(job_id),
            start=start,
            part_bytes=part_bytes,
            most_bytes=most_bytes,
            left_out=() if with_scores else sorted(ANSWER_FIELDS),
        )

    def record(self, job_id: str) -> RedisCall[JobRecord | None]:
        """The record of a job, without its body; None if there is none."""
        names = JobRecord.__slots__
        return RedisCall(
            "HMGET",
            (self.job_key(job_id),),
            names,
            lambda reply: read_record(dict(zip(names, reply, strict=True))),
        )

    def state(self, job_id: str) -> RedisCall[str | None]:
        """The state of a job; None if it has no record."""
        key = (self.job_key(job_id),)
        return RedisCall("HGET", key, ("state",), lambda raw: None if raw in (None, b"purged") else text(raw))

    def is_purged(self, job_id: str) -> RedisCall[bool]:
        """Whether nothing is left of a job but the mark that it was purged."""
        return RedisCall("HGET", (self.job_key(job_id),), ("state",), lambda reply: reply == b"purged")

    def body(self, job_id: str) -> RedisCall[bytes | None]:
        """The JSON of a job as it was accepted; None if it has no record."""
        return RedisCall("HGET", (self.job_key(job_id),), ("body",), lambda reply: reply)

    def webhook_secret(self, job_id: str) -> RedisCall[str | None]:
        """What a job's webhook is signed with, if the job has brought it."""
        return RedisCall("HGET", (self.job_key(job_id),), ("webhook_secret",), lambda raw: raw and text(raw))

    def origin(self, job_id: str) -> RedisCall[JobOrigin]:
        """Read the facts about a job's origin."""

        def read(reply: list[bytes | None]) -> JobOrigin:
            queue, attempts, envelope = reply
            headers = json.loads(envelope or b"{}").get("headers") or {}
            model = model_of(text(queue or b""), self.tenant)
            return JobOrigin(model, number(attempts), trace_id_of(headers))

        return RedisCall("HMGET", (self.job_key(job_id),), ("queue", "attempts", "envelope"), read)

    def place(self, job_id: str) -> RedisCall[Place | None]:
        """Where a waiting job stands; None if it does not wait."""
        asked = self.places([job_id])
        return RedisCall(asked.what, asked.keys, asked.args, lambda reply: read_place(reply[0]))

    def places(self, job_ids: Sequence[str]) -> RedisCall[list[Place | None]]:
        """Where several waiting jobs stand; None for each that does not wait."""
        return call(
            "place",
            lambda reply: list(map(read_place, reply)),
            **self.keys_named("pending", "waiting"),
            jobs=[{"job": self.job_key(job_id), "id": job_id} for job_id in job_ids],
        )

    def line_marks(self) -> tuple[RedisCall[Any], ...]:
        """Calls whose answers change when a job joins or leaves those that wait: number, first, last."""
        pending = (self.key("pending"),)
        return (
            RedisCall("ZCARD", pending, (), int),
            RedisCall("ZRANGE", pending, (0, 0), tuple),
            RedisCall("ZRANGE", pending, (-1, -1), tuple),
        )

    def jobs_with_news(self, cursors: Mapping[str, int]) -> RedisCall[set[str]]:
        """The jobs that have events after the given numbers."""
        ids = {self.events_key(job_id).encode(): job_id for job_id in cursors}
        after = (f"{last}-0" for last in cursors.values())

        def read(reply: Any) -> set[str]:  # redis-py's reply depends on the protocol
            return {ids[name] for name in (reply if isinstance(reply, Mapping) else dict(reply or ()))}

        return RedisCall("XREAD", (), ("COUNT", 1, "STREAMS", *ids, *after), read)

    def are_waiting(self, job_ids: Sequence[str]) -> RedisCall[list[bool]]:
        """Tell for each job whether it waits."""
        return RedisCall(
            "ZMSCORE", (self.key("pending"),), job_ids, lambda reply: [score is not None for score in reply]
        )

    def lease_ends(self, job_ids: Sequence[str]) -> RedisCall[list[float]]:
        """Until when workers own these jobs, by the clock of Redis; 0 for each that nobody owns."""
        return RedisCall(
            "ZMSCORE", (self.key("leases"),), job_ids, lambda reply: [float(end or 0) for end in reply]
        )

    def queue_depth(self, queue: str) -> RedisCall[int]:
        """Number of messages in a queue."""
        return call("depth", int, lists=lists_of(queue))

    def num_pending(self) -> RedisCall[int]:
        """Number of waiting jobs."""
        return RedisCall("ZCARD", (self.key("pending"),), (), int)

    def num_running(self) -> RedisCall[int]:
        """Number of jobs that workers own."""
        return RedisCall("ZCARD", (self.key("leases"),), (), int)


def read_place(reply: list[int] | None) -> Place | None:
    """The wait counts the job itself: it ends when the job is taken."""
    if reply is None:
        return None
    position, due_in_ms, num_taken, span_ms = reply
    if not num_taken:
        return Place(position, None)
    wait_s = position / rate_per_s(num_taken, span_ms)
    return Place(position, round(max(wait_s, due_in_ms / 1000), 3))


def read_part(reply: list[Any]) -> StreamPart:
    n, start, *events = reply
    return StreamPart(n, text(start), list(map(parse_event, events)), sum(map(len, events)))


def _failure(json: bytes | None) -> Failure | None:
    with suppress(ValueError):
        return Failure.model_validate_json(json) if json else None
    return None


_NOTES = TypeAdapter(dict[str, str])


def _notes(json: bytes | None) -> Mapping[str, str]:
    with suppress(ValueError):
        return _NOTES.validate_json(json) if json else {}
    return {}


_NUMBERS = ("epoch", "seq", "n", "deaths", "attempts", "submitted_ms", "due_ms", "retries", "preemptions")
_TIMES = ("deadline_ms", "retry_ms", "claimed_ms", "started_ms", "ended_ms")
_OPTIONAL_NUMBERS = (*_TIMES, "preempted_n", "retries_left")
_READERS: Mapping[str, Callable[[bytes | None], Any]] = {
    **dict.fromkeys(_NUMBERS, number),
    **dict.fromkeys(_OPTIONAL_NUMBERS, number_or_none),
    **dict.fromkeys(("error", "retry_error"), _failure),
    "queue": lambda raw: text(raw or b""),
    "metadata": _notes,
}


def read_fields(fields: Mapping[str, bytes | None]) -> dict[str, Any]:
    """Parse fields of a record, whatever others have written there: a damaged one must still be shown."""
    return {name: _READERS.get(name, text_or_none)(raw) for name, raw in fields.items()}


def read_record(fields: Mapping[str, bytes | None]) -> JobRecord | None:
    """Parse a record. None if there is none, or a purge has left nothing of the job."""
    return None if fields["state"] in (None, b"purged") else JobRecord(**read_fields(fields))
