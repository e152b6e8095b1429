"""Every error that llama-herd raises on purpose.

HerdError
├── BadInput            what a person gave cannot be used; the command line exits with 2
│   ├── ModelFileError  a model file is missing, cut off, foreign or of an unsupported kind
│   ├── DeviceError     the device that was asked for is not there
│   ├── SettingsError   a setting has a value that cannot work here
│   ├── InvalidJob      a job has fields that cannot be accepted; `fields` names each of them
│   └── JobConflict     an id or an idempotency key names another job already
├── RedisUnavailable    Redis cannot be reached or refuses us
├── QueueFull           as many jobs or tokens wait as may; `retry_after_s` says when to try again
├── JobNotFound         no such job, or its record has been forgotten
├── JobRunning          a worker runs the job, which must end first
├── RecordUnreadable    what Redis holds of a job was written by somebody else, or is not whole
├── GenerationError     a job ended with an error; `code` says which, `retriable` whether to try again
└── DeadlineExceeded    a job was not finished by its deadline
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

from llama_herd.error_code import is_retriable


class HerdError(Exception):
    """Base of all errors that are raised on purpose."""


class BadInput(HerdError, ValueError):
    """Something a person gave cannot be used. The message names the thing and the fix."""


class ModelFileError(BadInput):
    """A model file cannot be used. The message names the file, the field and both numbers."""


class DeviceError(BadInput):
    """The device that was asked for is not there. The message lists those that are."""


class SettingsError(BadInput):
    """A setting has a value that cannot work here."""


#: An error about a job has at most so many entries, and so many bytes of text: it travels as an event.
MAX_FIELD_ERRORS = 20
MAX_ERROR_BYTES = 2048
#: Most bytes of one entry's field, and of its message; and room for a last entry, which counts the others.
MAX_FIELD_BYTES = 128
MAX_MESSAGE_BYTES = 384
_REST_BYTES = 64


class FieldError(NamedTuple):
    """One field of a job, and what is wrong with it. Never holds what the field contained."""

    field: str
    message: str


class InvalidJob(BadInput):
    """A job cannot be accepted; `fields` holds one entry for each wrong field.

    Of many wrong fields the first are named, and the last entry says how many more there are at least: there
    are never more than 20 entries, or 2,048 bytes of text.
    """

    def __init__(self, fields: Sequence[FieldError]) -> None:
        self.fields = _bounded(fields)
        super().__init__(self.fields)

    def __str__(self) -> str:
        return "; ".join(f"{field}: {message}" for field, message in self.fields)


def _bounded(fields: Sequence[FieldError]) -> tuple[FieldError, ...]:
    kept: list[FieldError] = []
    left = MAX_ERROR_BYTES - _REST_BYTES
    for field, message in fields[:MAX_FIELD_ERRORS]:
        entry = FieldError(_cut(field, MAX_FIELD_BYTES), _cut(message, MAX_MESSAGE_BYTES))
        left -= len(f"{entry.field}: {entry.message}; ".encode())
        if left < 0:
            break
        kept.append(entry)
    if len(kept) < len(fields):
        del kept[MAX_FIELD_ERRORS - 1 :]
        kept.append(FieldError("job", f"has at least {len(fields) - len(kept)} more errors"))
    return tuple(kept)


def _cut(text: str, num_bytes: int) -> str:
    """A text that is not longer, and that can be written as UTF-8."""
    encoded = text.encode(errors="replace")
    if len(encoded) > num_bytes:
        return encoded[: num_bytes - 3].decode(errors="ignore") + "..."
    return encoded.decode()


class JobConflict(BadInput):
    """An id or an idempotency key names a job that differs from this one. Nothing was accepted."""


class RedisUnavailable(HerdError):
    """Redis cannot be reached or refuses us. The message names the address and the fix."""


class QueueFull(HerdError):
    """As many jobs or tokens wait as may. The message names both numbers; nothing was accepted.

    depth, limit: what waits and what may, in `unit`.
    retry_after_s: when there will be room at the rate at which jobs were taken lately, at most a minute.
    """

    def __init__(
        self, queue: str, unit: Literal["jobs", "tokens"], depth: int, limit: int, retry_after_s: float
    ) -> None:
        self.queue = queue
        self.unit = unit
        self.depth = depth
        self.limit = limit
        self.retry_after_s = retry_after_s
        super().__init__(
            f"{depth} {unit} wait in {queue}, which may hold {limit}. Fix: submit again in "
            f"{retry_after_s:.0f} s, start more workers, or raise {_LIMITS[unit]}"
        )


_LIMITS = {"jobs": "HERD_MAX_QUEUE", "tokens": "HERD_MAX_QUEUE_TOKENS"}


class JobNotFound(HerdError):
    """No job of this id is known: it was never accepted, or its record has been forgotten."""

    @classmethod
    def of(cls, job_id: str) -> Self:
        """What may have become of the job, and what can be done."""
        return cls(
            f"no job {job_id}: it was never submitted, or is forgotten: purged, or over for "
            "HERD_STREAM_TTL_S. Fix: check the id and HERD_TENANT; with wait=True, or herd watch --wait, "
            "a job that is to come is waited for"
        )


class JobRunning(HerdError):
    """A worker runs the job. Cancel it, or wait for its end."""


class RecordUnreadable(HerdError, ValueError):
    """What Redis holds of a job was written by somebody else, or is not whole. The message says what."""


class GenerationError(HerdError):
    """A job ended with an error. The arguments survive Celery's JSON result backend.

    code: an ErrorCode, as text, or one of a newer worker. retriable: by default as the code says.
    """

    def __init__(self, code: str, message: str, retriable: bool | None = None) -> None:
        self.code = str(code)
        self.message = message
        self.retriable = is_retriable(code) if retriable is None else retriable
        super().__init__(self.code, message, self.retriable)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class DeadlineExceeded(HerdError):
    """A job was not finished by its deadline."""
