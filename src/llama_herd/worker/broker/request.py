"""Celery's view of a message: it shows no arguments, and Celery does not wait for a job's ETA."""

from collections.abc import Callable, Mapping
from math import ceil, isfinite
from time import time
from typing import Any

from celery import signals
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker.request import Request
from kombu.message import Message

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.message import job_task_of

#: Key in the request dictionary of a job's message: when its `eta` lets it begin (unix ms), if it has one.
DUE_MS = "herd_due_ms"
#: Key of the InvalidJob with which the job must end, since its headers or its message cannot be read.
REFUSAL = "herd_refusal"

#: Key of why Celery would end a job by itself: revoked or expired.
ENDED = "herd_ended"

#: How far ahead an ETA may be. Who writes the year 9999 has overflown, or means never.
MAX_AHEAD_DAYS = 3650
DAY_MS = 86_400_000

_BAD_TIME = "must be a date and time in ISO 8601"
_BAD_LIMITS = "must be two numbers of seconds, the hard and the soft limit; null for no limit"


class TooFar(ValueError):
    """An ETA is too far ahead. The message says how far it may be."""


class QuietRequest(Request):  # type: ignore[misc]
    """A request that hides its arguments, which hold prompts and texts, from those who inspect the worker."""

    def info(self, safe: bool = False) -> dict[str, Any]:
        return {**super().info(safe=safe), "args": [], "kwargs": {}}


class JobRequest(QuietRequest):
    """The request of a job. A bad header is an error of the job, named in its final event.

    Celery does not see an `eta`: it would hold the message until then. The ledger keeps the job instead.
    """

    def __init__(self, message: Message, *, headers: Mapping[str, Any], **options: Any) -> None:
        errors: list[FieldError] = []
        read = {name: _read(name, headers.get(name), errors) for name in _READERS}
        unread = {name: None for name, value in read.items() if value is None}
        kept = {"timelimit": read["timelimit"], "eta": None}
        super().__init__(message, headers={**headers, **unread, **kept}, **options)
        given = headers.get(REFUSAL)
        refusal = given if isinstance(given, InvalidJob) else InvalidJob(errors) if errors else None
        self._request_dict |= {DUE_MS: read["eta"], REFUSAL: refusal, ENDED: None}

    def revoked(self) -> bool:
        """Whether Celery has ended the job: never, since only its ledger knows whether it has begun in time.

        Celery would also store the end here, on the thread that takes messages.
        """
        if self._request_dict[ENDED] is None:  # Celery asks twice, and logs each time
            super().revoked()
        return False

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Note for the claim why the job is to end; of one that runs here tell the pool."""
        self._request_dict[ENDED] = "expired" if expired else "revoked"
        if terminated:
            signals.task_revoked.send(sender=self.task, request=self._context)

    @property
    def time_limit_s(self) -> float | None:
        """The smaller of Celery's two limits; those of the message override those of its task."""
        hard_s, soft_s = self.time_limits
        limits_s = (hard_s or self.task.time_limit, soft_s or self.task.soft_time_limit)
        return min(filter(None, limits_s), default=None)


def refuse(message: Message, job_id: str, complaint: str) -> None:
    """Replace the content of a job's unreadable message, so that the job ends with the complaint."""
    message.headers = {
        "task": job_task_of(message.headers),
        "id": job_id,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        REFUSAL: InvalidJob([FieldError("message", complaint)]),
    }
    message.body = b"[[], {}, {}]"
    message.content_type, message.content_encoding = "application/json", "utf-8"
    message.errors, message._decoded_cache = [], None


def is_refused(message: Message) -> bool:
    """Whether `refuse` was called on it: a header from the queue can never hold an exception."""
    return isinstance(message.headers.get(REFUSAL), InvalidJob)


def _read(name: str, value: object, errors: list[FieldError]) -> Any:
    """Read a header; a bad one is an error of the job, and counts as absent."""
    if value is None:
        return None
    reader, complaint = _READERS[name]
    try:
        return reader(value)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        errors.append(FieldError(name, str(error) if isinstance(error, TooFar) else complaint))
        return None


def _unix_ms(text: Any) -> int:
    """A naive time is UTC, as in Celery."""
    time_s: float = maybe_make_aware(maybe_iso8601(text)).timestamp()
    return round(1000 * time_s)


def _due_ms(text: Any) -> int:
    """Unix milliseconds of an ETA. Raises TooFar, besides what a bad time raises."""
    due_ms = _unix_ms(text)
    num_days = ceil((due_ms - 1000 * time()) / DAY_MS)
    if num_days > MAX_AHEAD_DAYS:
        raise TooFar(f"must be at most {MAX_AHEAD_DAYS} days ahead, got {num_days}. Fix: an earlier time")
    return due_ms


def _limits_s(pair: Any) -> list[float | None]:
    hard_s, soft_s = pair
    for limit_s in (hard_s, soft_s):
        if limit_s is not None and not (isfinite(limit_s) and limit_s >= 0):
            raise ValueError
    return [None if limit_s is None else float(limit_s) for limit_s in (hard_s, soft_s)]


#: How each header is read, and the complaint about a bad one.
_READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "eta": (_due_ms, _BAD_TIME),
    "expires": (_unix_ms, _BAD_TIME),
    "timelimit": (_limits_s, _BAD_LIMITS),
}
