"""What Redis replies to the ledger's calls, read into the ledger's answers."""

from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llama_herd.tasks.answers import (
    Adopt,
    Busy,
    ClaimAnswer,
    DeadJob,
    DeadLetter,
    Early,
    Emission,
    Emitted,
    Ended,
    Record,
    Settled,
    Settling,
    Submission,
    Submitted,
    Unknown,
    Yours,
)

S = TypeVar("S", bound=BaseModel)


def text(value: bytes) -> str:
    """What others have written, in whatever encoding."""
    return value.decode(errors="replace")


def read_submitted(reply: list[Any]) -> Submitted:
    kind, num_jobs, num_tokens, num_taken, span_ms = reply
    # Within its first second a span says nothing of a rate.
    taken_per_s = num_taken / max(span_ms / 1000, 1.0)
    return Submitted(Submission(text(kind)), num_jobs, num_tokens, taken_per_s)


def read_claim(reply: list[Any]) -> ClaimAnswer:
    kind = text(reply[0])
    match kind:
        case "yours" | "adopt":
            now_ms, epoch, n, seq, attempts, starts, due_ms = map(int, reply[1:8])
            deadline_ms = int(reply[8]) if reply[8] else None
            claimed = Yours if kind == "yours" else Adopt
            return claimed(epoch, n, seq, attempts, starts, due_ms, text(reply[9]), now_ms, deadline_ms)
        case "busy":
            return Busy(int(reply[1]))
        case "early":
            return Early()
        case "settled":
            return Settled()
        case "unknown":
            return Unknown()
        case _:
            return Ended(kind)


def read_settling(reply: list[Any]) -> Settling | Busy | Settled:
    """Of a job that is purged Celery has been told all; one that is forgotten is nobody else's."""
    match text(reply[0]):
        case "busy":
            return Busy(int(reply[1]))
        case "settled" | "purged":
            return Settled()
        case _:
            return Settling()


_WRITTEN = {b"ok": Emitted(Emission.OK), b"duplicate": Emitted(Emission.DUPLICATE)}


def read_emit(reply: list[Any]) -> list[Emitted]:
    return [
        _WRITTEN[answer]
        if isinstance(answer, bytes)
        else Emitted(Emission(text(answer[0])), answer[1], answer[2], text(answer[3]))
        for answer in reply
    ]


def read_record(fields: dict[str, bytes | None]) -> Record | None:
    if fields["state"] in (None, b"purged"):
        return None
    texts = {name: None if value is None else value.decode() for name, value in fields.items()}
    numbers = ("epoch", "seq", "n", "attempts", "starts", "submitted_ms", "due_ms", "deadline_ms")
    values = {name: int(text) if text and name in numbers else text for name, text in texts.items()}
    return Record(**values)  # type: ignore[arg-type]


def read_state(reply: bytes | None) -> str | None:
    return None if reply in (None, b"purged") else text(reply)


def read_reports(reply: list[list[bytes]], kind: type[S]) -> list[S]:
    """Those that can be read: what another version has written may not be."""
    reports = []
    for flat in reply:
        texts = [text(part) for part in flat]
        with suppress(ValidationError):
            reports.append(kind.model_validate(dict(zip(texts[::2], texts[1::2], strict=True))))
    return reports


def read_letter(number: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    values = {text(name): value for name, value in fields.items()}
    raw, num_bytes = values.pop("raw"), int(values.pop("num_bytes"))
    texts = {name: value.decode(errors="replace") for name, value in values.items()}
    at_ms = int(text(number).partition("-")[0])
    return DeadLetter(number=text(number), at_ms=at_ms, raw=raw, num_bytes=num_bytes, **texts)


def read_dead_jobs(reply: list[list[bytes | None]]) -> list[DeadJob]:
    rows = [[None if part is None else text(part) for part in row] for row in reply]
    return [
        DeadJob(str(job_id), int(at_ms or 0), worker, str(queue), int(starts or 0))
        for job_id, at_ms, worker, queue, starts in rows
    ]
