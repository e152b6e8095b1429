"""What became of a job, moment by moment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.protocol.events import End, Event, Started


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened to a job."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    at_ms: int
    """When, in unix milliseconds by the clock of Redis."""
    what: Literal["queued", "due", "claimed", "started", "continued", "retried", "ended"]
    """`due`: its `not_before` was over. `claimed`: by the worker that had it last. `continued`: started
    again, behind the tokens on record. `retried`: when it is, or was, to be tried again after an error."""
    worker: str | None = None
    """Whose doing it was; None: no worker's."""
    note: str = ""
    """How it ended, or after which error it was put back."""


def timeline(record: JobRecord, events: Sequence[Event] = ()) -> list[Moment]:
    """All that is known of the times of a job, the earliest first.

    events: of its stream, which tell every start; without them only the last one is known.
    """
    return sorted(_moments(record, events), key=lambda one: one.at_ms)


def _moments(record: JobRecord, events: Sequence[Event]) -> Iterator[Moment]:
    yield Moment(record.submitted_ms, "queued")
    if record.due_ms > record.submitted_ms:
        yield Moment(record.due_ms, "due")
    if record.claimed_ms is not None:
        yield Moment(record.claimed_ms, "claimed", record.worker)
    yield from _starts(record, events)
    if record.retry_ms is not None:
        yield Moment(record.retry_ms, "retried", note=record.retry_error.code if record.retry_error else "")
    if record.ended_ms is not None:
        last = events[-1] if events else None
        why = record.error.code if record.error else record.finish_reason or ""
        yield Moment(record.ended_ms, "ended", last.worker if isinstance(last, End) else None, why)


def _starts(record: JobRecord, events: Sequence[Event]) -> Iterator[Moment]:
    """All starts that the events tell; without events the last one, which the record tells too."""
    for event in events:
        if isinstance(event, Started):
            yield Moment(event.at_ms, "started" if event.attempt == 1 else "continued", event.worker)
    if not events and record.started_ms is not None:
        yield Moment(record.started_ms, "started" if record.attempts == 1 else "continued", record.worker)
