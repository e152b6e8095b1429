"""Every error that llama-herd raises on purpose.

HerdError
├── BadInput            some input cannot be used; the command line exits with 2
│   ├── ModelFileError  a model file is missing, truncated, not a model, or of an unsupported kind
│   ├── DeviceError     this machine does not have the requested device
│   ├── SettingsError   a setting has a value that cannot work here
│   ├── InvalidJob      a job has fields that cannot be accepted; `fields` names each of them
│   └── JobConflict     another job already has this id or idempotency key
├── DeviceLost          a GPU answers this process no more: its worker ends
├── RedisUnavailable    Redis cannot be reached, or rejects the call
│   ├── NotPermitted    the user of Redis lacks a right
│   └── NotReplicated   too few replicas have a job: a failover may lose it
├── QueueFull           the queue's limit of jobs or tokens is reached; `retry_after_s` says when to try again
├── KeptFull            ended jobs keep as much of Redis as they may: nothing new is accepted
├── JobNotFound         no such job, or its record has been forgotten
├── JobRunning          a worker runs the job, which must end first
├── WorkerNotFound      no worker of this name is up
├── HubUnavailable      Hugging Face cannot be reached, and what is wanted of it is not in the cache
├── StorageUnavailable  files of a gateway cannot be stored or read
│   ├── StorageFull     there is no room for them
│   └── FileLost        the bytes of a file are not where they were stored
├── RecordUnreadable    a job's data in Redis is incomplete, or was not written by llama-herd
│   └── StreamRewritten Redis has lost events that were read, and the job went on without them
├── GenerationError     a job ended with an error; `code` says which, `retriable` whether to try again
└── DeadlineExceeded    a job was not finished by its deadline

UnservedModel is no error but a warning: a job was accepted for a model that no worker serves.
"""

import traceback
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Self

from llama_herd.error_code import ErrorCode, is_retriable


class HttpAnswer(NamedTuple):
    """How an error is answered over HTTP: a status, a code, and words without what only the operator reads.

    Each text may name fields of the error `e`. cause: what the log says in place of the message.
    """

    status: int
    code: str
    message: str = "{e}"
    cause: str | None = None


class HerdError(Exception):
    """Base of all errors that are raised on purpose.

    Its `args` make the same error again: so it reaches another process by pickle, or by Celery's JSON.
    """

    http: ClassVar[HttpAnswer] = HttpAnswer(500, "internal_error")


class BadInput(HerdError, ValueError):
    """Some input cannot be used. The message names it, and the fix."""

    http = HttpAnswer(400, "bad_input")


class ModelFileError(BadInput):
    """A model file cannot be used. The message names the file, the field and both numbers."""


class DeviceError(BadInput):
    """The requested device is not on this machine. The message lists the devices that it has."""


class DeviceLost(HerdError):
    """A GPU no longer answers this process: it is broken, or a kernel has broken its context.

    A worker ends by it, and its jobs go on elsewhere. The message is the driver's.
    """


class SettingsError(BadInput):
    """A setting has a value that cannot work here."""


#: Most entries of an error about a job, and most bytes of its text: it travels as an event.
MAX_FIELD_ERRORS = 20
MAX_ERROR_BYTES = 2048
#: Most bytes of one entry's field and of its message, and the bytes kept for a last entry that counts the
#: rest.
MAX_FIELD_BYTES = 128
MAX_MESSAGE_BYTES = 384
_REST_BYTES = 64


class FieldError(NamedTuple):
    """One field of a job, and what is wrong with it. It never contains the field's value."""

    field: str
    message: str


class InvalidJob(BadInput):
    """A job cannot be accepted; `fields` holds one entry for each wrong field.

    There are at most 20 entries and 2,048 bytes of text. If that does not hold all wrong fields, the last
    entry says how many more there are at least.
    """

    http = HttpAnswer(422, ErrorCode.INVALID_JOB)

    def __init__(self, fields: Sequence[FieldError]) -> None:
        self.fields = _bounded(fields)
        super().__init__(self.fields)

    def __str__(self) -> str:
        return "; ".join(f"{field}: {message}" for field, message in self.fields)


def _bounded(fields: Sequence[FieldError]) -> tuple[FieldError, ...]:
    """The entries as far as they fit into an error; a last one counts the rest."""
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
    """`text`, shortened to this many bytes, and without characters that UTF-8 cannot encode."""
    encoded = text.encode(errors="replace")
    if len(encoded) > num_bytes:
        return encoded[: num_bytes - 3].decode(errors="ignore") + "..."
    return encoded.decode()


class JobConflict(BadInput):
    """A different job already has this id or idempotency key. Nothing was accepted."""

    http = HttpAnswer(409, "job_conflict")


class RedisUnavailable(HerdError):
    """Redis cannot be reached, or rejects the call. The message names the address and the fix."""

    http = HttpAnswer(503, "queue_unavailable", "the queue is away", "{e}")


class NotPermitted(RedisUnavailable):
    """The user of Redis lacks the right to a command, a key or a channel."""

    http = HttpAnswer(
        403, "not_permitted", "this gateway's user of Redis lacks a right. Fix: herd acl", "{e}"
    )


class NotReplicated(RedisUnavailable):
    """A job was submitted, but fewer replicas of Redis have it than HERD_REPLICAS: nobody knows its state.

    It runs unless Redis fails over before they have it. To submit the same again under its id or idempotency
    key is safe: it runs once.
    """

    http = HttpAnswer(503, "not_replicated", cause="{e}")

    def __init__(self, job_id: str, num: int, wanted: int, waited_s: float) -> None:
        self.job_id = job_id
        super().__init__(job_id, num, wanted, waited_s)

    def __str__(self) -> str:
        job_id, num, wanted, waited_s = self.args
        return (
            f"job {job_id} is not safe: {num} of {wanted} replicas have it after {waited_s:g} s, so a "
            "failover could lose it. Fix: submit exactly the same job again under this job_id or its "
            "idempotency_key, which runs it once; HERD_REPLICAS says how many must have it"
        )


class QueueFull(HerdError):
    """The queue's limit of waiting jobs or tokens is reached. Nothing was accepted.

    depth, limit: how much waits and how much may wait, in `unit`.
    retry_after_s: when there will be room if workers take jobs as fast as lately; at most a minute.
    """

    http = HttpAnswer(429, "queue_full", "{e.depth} {e.unit} wait, and the limit is {e.limit}")

    def __init__(
        self, queue: str, unit: Literal["jobs", "tokens"], depth: int, limit: int, retry_after_s: float
    ) -> None:
        self.queue = queue
        self.unit = unit
        self.depth = depth
        self.limit = limit
        self.retry_after_s = retry_after_s
        super().__init__(queue, unit, depth, limit, retry_after_s)

    def __str__(self) -> str:
        return (
            f"{self.depth} {self.unit} wait in {self.queue}, and the limit is {self.limit}. "
            f"Fix: submit again in {self.retry_after_s:.0f} s, start more workers, or raise "
            f"{_LIMITS[self.unit]}"
        )


class KeptFull(HerdError):
    """Ended jobs keep as much of Redis as they may. Nothing was accepted, and nothing kept is dropped.

    num_bytes, limit: what they keep, and how much they may.
    """

    http = HttpAnswer(
        507, "kept_full", "ended jobs keep {e.num_bytes} bytes, and the limit is {e.limit}", "{e}"
    )

    def __init__(self, num_bytes: int, limit: int) -> None:
        self.num_bytes = num_bytes
        self.limit = limit
        super().__init__(num_bytes, limit)

    def __str__(self) -> str:
        return (
            f"ended jobs keep {self.num_bytes:,} bytes of Redis, and the limit is {self.limit:,}, which is "
            "HERD_KEPT_SHARE of its maxmemory. Fix: herd purge --all-ended, or a shorter keep_s, or a larger "
            "maxmemory"
        )


_LIMITS = {"jobs": "HERD_MAX_QUEUE", "tokens": "HERD_MAX_QUEUE_TOKENS"}


class JobNotFound(HerdError):
    """No job has this id: it was never accepted, or its record has expired or was purged."""

    http = HttpAnswer(
        404,
        "not_found",
        "no such job: it was never submitted, it was purged, it is forgotten, or the queue has lost its data",
    )

    @classmethod
    def for_id(cls, job_id: str) -> Self:
        """The error for this id, with what may have become of the job and what to do."""
        return cls(
            f"no job {job_id}: it was never submitted, no worker has taken its bare message, it was purged, "
            "it ended more than HERD_STREAM_TTL_S ago, or Redis came back without its data. Fix: check the "
            "id and HERD_TENANT; for a bare message see herd status --model NAME, for Redis herd doctor. To "
            "wait for a job that is not submitted yet, use wait=True or herd watch --wait"
        )


class JobRunning(HerdError):
    """A worker is running the job. Cancel it, or wait for its end."""

    http = HttpAnswer(409, "job_running", "this job has not ended: cancel it first")


class WorkerNotFound(HerdError):
    """No worker of this name is up. The message names some that are."""

    http = HttpAnswer(404, "worker_not_found")


class HubUnavailable(HerdError):
    """Hugging Face cannot be reached, and what is wanted of it is not in the cache. The message says why."""


class StorageUnavailable(HerdError):
    """The files of a gateway cannot be stored or read at the moment. The message says why, and the fix."""

    http = HttpAnswer(503, "files_unavailable", "files cannot be stored or read here", "{e}")


class StorageFull(StorageUnavailable):
    """There is no room for a file, or for answers. Nothing half written is left."""

    http = HttpAnswer(507, "storage_full", "there is no room for files here", "{e}")


class FileLost(StorageUnavailable):
    """The bytes of a file are not where they were stored."""

    http = HttpAnswer(410, "file_lost", "the bytes of this file are gone", "{e}")


class RecordUnreadable(HerdError, ValueError):
    """A job's data in Redis is incomplete, or was not written by llama-herd. The message says which data."""

    http = HttpAnswer(500, ErrorCode.UNREADABLE, "the data of this job is not what we wrote", "{e}")


class StreamRewritten(RecordUnreadable):
    """Redis has lost events that a reader has passed on, and the job went on from before them.

    So it may be after a failover or a power loss. Whoever reads the stream again from its beginning gets it
    whole, as it is on record now.
    """

    @classmethod
    def behind(cls, job_id: str, seq: int) -> Self:
        """The error of a reader that has passed on the events up to number `seq`."""
        return cls(
            f"Redis has lost events of job {job_id} up to number {seq}, which this reader has passed on, and "
            "the job went on without them. Fix: read the stream again from its beginning"
        )

    http = HttpAnswer(503, "stream_rewritten", "a part of this stream was lost: read it again", "{e}")


class GenerationError(HerdError):
    """A job ended with an error.

    code: an ErrorCode as text; a newer worker may send others. retriable: by default what the code says.
    """

    http = HttpAnswer(500, "{e.code}", "{e.message}", "{e.code}")  # its own code decides

    def __init__(self, code: str, message: str, retriable: bool | None = None) -> None:
        self.code = str(code)
        self.message = message
        self.retriable = is_retriable(code) if retriable is None else retriable
        super().__init__(self.code, message, self.retriable)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class DeadlineExceeded(HerdError):
    """A job was not finished by its deadline."""

    http = HttpAnswer(504, ErrorCode.DEADLINE, "the job was not finished by its deadline")


class UnservedModel(UserWarning):
    """No worker serves a job's model, though some serve others; the message names those. The job waits.

    If no worker ever serves the model, the job ends with an error after HERD_UNSERVED_TIMEOUT_S.
    """


def error_place(error: BaseException) -> str:
    """The exception's type and place in the code, not its message, which may quote a prompt."""
    places = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{place.filename}:{place.lineno}" for place in reversed(places))
    return f"{type(error).__name__} at {where}"
