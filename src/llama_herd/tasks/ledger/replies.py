"""Parsers: from the replies of Redis to the ledger's answers."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, TypeVar

from pydantic import BaseModel
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.answers import (
    Adopt,
    Busy,
    ClaimAnswer,
    DeadJob,
    DeadLetter,
    Early,
    Emission,
    Emitted,
    Ended,
    JobOrigin,
    JobRecord,
    Place,
    Settled,
    Settling,
    StreamPart,
    Submission,
    Submitted,
    Unknown,
    Yours,
)
from llama_herd.tasks.protocol.events import Failure, parse_event
from llama_herd.tasks.protocol.message import MessageHead, trace_id_of

S = TypeVar("S", bound=BaseModel)


def text(value: bytes) -> str:
    """Bytes that others may have written, as text, whatever their encoding."""
    return value.decode(errors="replace")


_NUMBER = re.compile(rb"-?[0-9]{1,20}")


def number(value: bytes | None) -> int:
    """A whole number that others may have written; 0 for anything else."""
    return int(value) if value is not None and _NUMBER.fullmatch(value) else 0


def score_number(value: bytes) -> int:
    """A sorted set's score, which may be any float, as a whole number."""
    found = float(value)
    return int(found) if isfinite(found) else 0


def fields_of(reply: dict[bytes, bytes] | list[bytes]) -> dict[bytes, bytes]:
    """A hash as a command or a script answers it."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def read_submitted(reply: list[Any]) -> Submitted:
    kind, num_jobs, num_tokens, num_taken, span_ms, *served = reply
    # A span of less than a second gives no useful rate.
    taken_per_s = num_taken / max(span_ms / 1000, 1.0)
    return Submitted(Submission(text(kind)), num_jobs, num_tokens, taken_per_s, tuple(map(text, served)))


_BARE_ANSWERS = {kind.encode(): Submitted(kind) for kind in Submission}


def read_submitted_many(reply: list[Any]) -> list[Submitted | ResponseError]:
    """The error of one job stands in the place of its answer."""
    return [
        _BARE_ANSWERS[answer] if isinstance(answer, bytes) else _read_submitted_one(answer)
        for answer in reply
    ]


def _read_submitted_one(answer: list[Any]) -> Submitted | ResponseError:
    return ResponseError(text(answer[1])) if answer[0] == b"error" else read_submitted(answer)


def read_place(reply: list[int] | None) -> Place | None:
    """The wait counts the job itself: it ends when the job is taken."""
    if reply is None:
        return None
    position, due_in_ms, num_taken, span_ms = reply
    if not num_taken:
        return Place(position, None)
    wait_s = position * max(span_ms / 1000, 1.0) / num_taken
    return Place(position, round(max(wait_s, due_in_ms / 1000), 3))


def read_scores(reply: list[Any]) -> list[bool]:
    """Whether each has a score."""
    return [score is not None for score in reply]


def read_names(ids: Mapping[bytes, str], reply: Any) -> set[str]:
    """The jobs whose streams an XREAD has found something in. redis-py's reply depends on the protocol."""
    found = reply if isinstance(reply, Mapping) else [name for name, _ in reply or ()]
    return {ids[name] for name in found}


#: Anybody may have written a record. A worker could not continue with numbers out of this range.
_NUMBERS = range(10**16)
#: Longest wait before a job that another worker owns is asked for again.
_MAX_BUSY_MS = 5_000


def _number(raw: bytes | int) -> int:
    """Raises ValueError."""
    number = int(raw)
    if number not in _NUMBERS:
        raise ValueError("not a number that the ledger writes")
    return number


def read_claim(reply: list[Any]) -> ClaimAnswer:
    kind = text(reply[0])
    match kind:
        case "yours" | "adopt":
            now_ms, epoch, n, seq, attempts, starts, due_ms = map(_number, reply[1:8])
            deadline_ms = _number(reply[8]) if reply[8] else None
            body, lane = text(reply[9]), text(reply[10] or b"")
            claimed = Yours if kind == "yours" else Adopt
            return claimed(epoch, n, seq, attempts, starts, due_ms, body, now_ms, deadline_ms, lane)
        case "busy":
            return Busy(min(int(reply[1]), _MAX_BUSY_MS))
        case "early":
            return Early()
        case "settled":
            return Settled()
        case "unknown":
            return Unknown()
        case _:
            return Ended(kind)


def read_settling(reply: list[Any]) -> Settling | Busy | Settled:
    """A purged job counts as settled. A forgotten one is the caller's: nobody else is at it."""
    match text(reply[0]):
        case "busy":
            return Busy(int(reply[1]))
        case "settled" | "purged":
            return Settled()
        case _:
            return Settling()


_RECORDED = {b"ok": Emitted(Emission.OK), b"duplicate": Emitted(Emission.DUPLICATE)}


def read_emit(reply: list[Any]) -> list[Emitted]:
    return [
        _RECORDED[answer]
        if isinstance(answer, bytes)
        else Emitted(Emission(text(answer[0])), answer[1], answer[2], text(answer[3]))
        for answer in reply
    ]


def read_part(reply: list[Any]) -> StreamPart:
    n, start, *events = reply
    return StreamPart(n, text(start), list(map(parse_event, events)), sum(map(len, events)))


_NUMERIC_FIELDS = frozenset({"epoch", "seq", "n", "attempts", "starts", "submitted_ms", "due_ms"})


def read_record(fields: dict[str, bytes | None]) -> JobRecord | None:
    """Parse a record, whatever others have written there: a damaged one must still be found and purged."""
    if fields["state"] in (None, b"purged"):
        return None
    values: dict[str, Any] = {
        name: number(value) if name in _NUMERIC_FIELDS else None if value is None else text(value)
        for name, value in fields.items()
    }
    deadline_ms = fields["deadline_ms"]
    values["deadline_ms"] = None if deadline_ms is None else number(deadline_ms)
    return JobRecord(**values | {"queue": values["queue"] or "", "error": _read_failure(fields["error"])})


def _read_failure(value: bytes | None) -> Failure | None:
    """The error in a record; None if there is none, or none that can be read."""
    with suppress(ValueError):
        return None if value is None else Failure.model_validate_json(value)
    return None


def read_origin(queue_prefix: str, reply: list[bytes | None]) -> JobOrigin:
    queue, starts, envelope = reply
    headers = json.loads(envelope or b"{}").get("headers") or {}
    return JobOrigin(text(queue or b"").removeprefix(queue_prefix), number(starts), trace_id_of(headers))


def read_state(reply: bytes | None) -> str | None:
    return None if reply in (None, b"purged") else text(reply)


def read_reports(reply: list[list[bytes]], kind: type[S]) -> list[S]:
    """The reports that can be parsed. Those of another version may not."""
    reports = []
    for flat in reply:
        texts = [text(part) for part in flat]
        with suppress(ValueError):
            reports.append(kind.model_validate(dict(zip(texts[::2], texts[1::2], strict=True))))
    return reports


def read_letter(entry_id: bytes, fields: Mapping[bytes, bytes]) -> DeadLetter:
    """Parse a letter. One of another version may lack some fields and have others."""
    head = {name: text(fields[name.encode()]) for name in MessageHead._fields if name.encode() in fields}
    return DeadLetter(
        number=text(entry_id),
        at_ms=number(entry_id.partition(b"-")[0]),
        reason=text(fields.get(b"reason", b"")),
        worker=text(fields.get(b"worker", b"")),
        queue=text(fields.get(b"queue", b"")),
        raw=fields.get(b"raw", b""),
        num_bytes=number(fields.get(b"num_bytes")),
        **head,
    )


def read_dead_jobs(reply: list[list[Any]]) -> list[DeadJob]:
    return [_dead_job(*row) for row in reply]


def _dead_job(
    job_id: bytes, at_ms: bytes, worker: bytes | None, queue: bytes, starts: bytes | None
) -> DeadJob:
    last_worker = None if worker is None else text(worker)
    return DeadJob(text(job_id), score_number(at_ms), last_worker, text(queue), number(starts))
