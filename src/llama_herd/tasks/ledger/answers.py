"""The ledger's answers: a small type for each outcome, so that callers cannot overlook one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from redis.exceptions import ResponseError

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.connection.temporary_errors import is_temporary_text
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.protocol.events import Event, Failure
from llama_herd.tasks.protocol.priority import NORMAL


class Submission(StrEnum):
    """Outcome of submitting a job."""

    SUBMITTED = "submitted"
    #: This very job already has the id: a repeated call.
    EXISTS = "exists"
    #: A different job already has the id.
    CONFLICT = "conflict"
    #: The limit of waiting jobs is reached.
    QUEUE_FULL = "queue_full"
    #: With this job the limit of waiting tokens would be exceeded.
    TOKENS_FULL = "tokens_full"
    #: Ended jobs keep as much of Redis as they may.
    KEPT_FULL = "kept_full"


class Submitted(NamedTuple):
    """The outcome, and what waits beside this job. taken_per_s: jobs that workers took lately.

    served_instead: if no worker serves the job's queue, the queues that are served.
    kept: of KEPT_FULL the bytes that ended jobs keep, and how many they may.
    """

    kind: Submission
    num_jobs: int = 0
    num_tokens: int = 0
    taken_per_s: float = 0.0
    served_instead: tuple[str, ...] = ()
    kept: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that the caller now owns under `epoch`, and what is recorded of it.

    deaths: workers that died while they prepared or computed it. If one more death would reach the limit,
    the job runs alone. attempts: how often it was started. n: tokens recorded. seq: last event recorded.
    due_ms: when it was accepted, or its `not_before`. now_ms: time of this answer. lane: lane of its message.
    retries: how often it was put back after an error. first_part: of its stream, or what Redis said when
    that was to be read; None: nobody has read it yet.
    """

    epoch: int
    n: int
    seq: int
    deaths: int
    attempts: int
    due_ms: int
    body: str
    now_ms: int
    deadline_ms: int | None = None
    lane: str = NORMAL
    retries: int = 0
    first_part: "StreamPart | ResponseError | None" = None

    @property
    def waited_s(self) -> float:
        """Seconds since the job was due, by the clock of Redis; 0 if that was put back."""
        return max(0, self.now_ms - self.due_ms) / 1000


class Yours(Claimed):
    """The caller now owns the job."""


class Adopt(Claimed):
    """The caller already owns the job: this message replaces the old one.

    A caller that does not know the job has lost the reply to its claim. It continues as after `Yours`.
    """


@dataclass(frozen=True, slots=True)
class Busy:
    """Another worker owns the job. Unless renewed, its lease ends in `remaining_ms`.

    0: the lease is over, but no sweep has given up that worker yet.
    """

    remaining_ms: int


@dataclass(frozen=True, slots=True)
class Early:
    """Its `not_before` or its next try is in the future: acknowledge. A sweep will push another message."""


class Ended(StrEnum):
    """The job has its final event: fold the stream into the result, store that, acknowledge."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POISON = "poison"


@dataclass(frozen=True, slots=True)
class Settled:
    """Celery has the result too, and would send links again: just acknowledge."""


@dataclass(frozen=True, slots=True)
class Settling:
    """The caller is to tell Celery how the job ended. It keeps this task as long as it asks again in time.

    keep_s: how long the job is kept after its end; None: as all are.
    has_sent_links: its links are sent, but its result could not be stored then.
    """

    keep_s: int | None = None
    has_sent_links: bool = False


@dataclass(frozen=True, slots=True)
class OwedJob:
    """An ended job of which Celery is still to be told. envelope: its message; empty: unknown."""

    job_id: str
    envelope: bytes


@dataclass(frozen=True, slots=True)
class Unknown:
    """The job has no record, and its message carries no job: it was forgotten or never accepted."""


ClaimAnswer = Yours | Adopt | Busy | Early | Ended | Settled | Unknown


class Emission(StrEnum):
    """Outcome of emitting one event."""

    OK = "ok"
    #: Recorded before: a repeated call.
    DUPLICATE = "duplicate"
    #: The caller no longer owns the job: drop it, and change nothing of it.
    FENCED = "fenced"
    #: The job already has its final event.
    FINISHED = "finished"
    #: The job is to end: only `end` is accepted now.
    CANCELLED = "cancelled"
    #: Only of a retry: the job's deadline is over before it.
    LATE = "late"
    #: The stream ends earlier than the caller believes: send again from there, with the events cut as before.
    GAP = "gap"
    #: The job's record or its events are gone, though nothing has ended it: only `end` is accepted now.
    DAMAGED = "damaged"
    #: Redis reported an error for this job's stream; `reason` is its message.
    ERROR = "error"
    #: Redis refuses every call with this event. No script answers this; the publisher finds it out.
    REFUSED = "refused"


class Emitted(NamedTuple):
    """seq, n: what is recorded; known only if the event was refused. reason: of a cancel or an error."""

    kind: Emission
    seq: int = 0
    n: int = 0
    reason: str = ""

    @property
    def is_full(self) -> bool:
        """Whether Redis cannot write at the moment, for lack of memory for example: try again."""
        return self.kind is Emission.ERROR and is_temporary_text(self.reason)


_RECORDED = {b"ok": Emitted(Emission.OK), b"duplicate": Emitted(Emission.DUPLICATE)}


def read_emit(reply: list[Any]) -> list[Emitted]:
    return [
        _RECORDED[answer]
        if isinstance(answer, bytes)
        else Emitted(Emission(text(answer[0])), answer[1], answer[2], text(answer[3]))
        for answer in reply
    ]


class StreamPart(NamedTuple):
    """Some of a job's events. next: where to read on, empty at the end. n: tokens recorded of the job."""

    n: int
    next: str
    events: list[Event]
    num_bytes: int


class Release(StrEnum):
    """Outcome of releasing a job."""

    RELEASED = "released"
    FINISHED = "finished"
    FENCED = "fenced"


class Renewal(StrEnum):
    """Outcome of renewing a lease."""

    OK = "ok"
    FENCED = "fenced"
    FINISHED = "finished"
    #: Renewed, but its owner is to end it.
    CANCELLED = "cancelled"
    #: A key of the job or of its tenant holds something else.
    ERROR = "error"


class Renewed(NamedTuple):
    """reason: why the job is to end."""

    kind: Renewal
    reason: str = ""


CancelReason = Literal["cancelled", "revoked", "deadline"]


class Cancellation(StrEnum):
    """Outcome of cancelling a job."""

    #: No worker was running it. It has its final event now.
    CANCELLED = "cancelled"
    #: Its worker has been told, and ends it within a step.
    ASKED = "asked"
    FINISHED = "finished"
    #: It has no record. A bare message of it may still be in a queue, and is not cancelled.
    UNKNOWN = "unknown"


class Purge(StrEnum):
    """Outcome of purging a job."""

    PURGED = "purged"
    #: Purged, but its bare message carries its prompt, too, and may still be somewhere.
    BARE = "bare"
    #: A worker is running it: cancel it, and wait for its end.
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Swept:
    """Jobs whose lost message was pushed again. held: nothing was done, to give live owners time to renew."""

    jobs: tuple[str, ...] = ()
    held: bool = False


#: The states of jobs that have not ended.
UNENDED = ("queued", "running")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job's record, without its body. worker: the last one that held it. due_ms: from when it may run.

    deaths: workers that died of it. attempts: how often it was started. retries: how often it was put back
    after an error, which is retry_error; retries_left: how often that may be again; None: it never was.
    retry_ms: when it is tried again, while it waits for that.
    claimed_ms, started_ms: of its last owner. ended_ms, finish_reason, error: of its final event; None until
    it has ended. metadata: the client's notes.
    """

    state: str
    queue: str
    owner: str | None
    worker: str | None
    epoch: int
    seq: int
    n: int
    deaths: int
    attempts: int
    cancel: CancelReason | None
    submitted_ms: int
    due_ms: int
    deadline_ms: int | None
    finish_reason: str | None = None
    error: Failure | None = None
    preemptions: int = 0
    preempted_n: int | None = None
    retries: int = 0
    retries_left: int | None = None
    retry_ms: int | None = None
    retry_error: Failure | None = None
    claimed_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        return self.state not in UNENDED

    def reason_to_end(self, now_ms: int) -> CancelReason | None:
        """Why it is to end now: somebody has asked for it, or its deadline is over; None if it is not."""
        is_late = self.deadline_ms is not None and self.deadline_ms <= now_ms
        return None if self.is_final else self.cancel or ("deadline" if is_late else None)


class JobOrigin(NamedTuple):
    """For what model a job is, how often it was started, and the id of its sender's trace."""

    model: str
    num_attempts: int
    trace_id: str | None


class Place(NamedTuple):
    """Where a waiting job stands: 1 is next. wait_s: how long at the rate of late; None if nothing was taken.

    Jobs of a higher priority that came later are not counted, and those of a lower one that came before are.
    """

    position: int
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be read. raw: its beginning. num_bytes: its full length.

    worker: the one that put it here. task_id, task, origin: what its headers name, see MessageHead.
    """

    number: str
    at_ms: int
    reason: str
    worker: str
    queue: str
    raw: bytes
    num_bytes: int
    task_id: str | None = None
    task: str | None = None
    origin: str | None = None

    @property
    def is_whole(self) -> bool:
        return len(self.raw) == self.num_bytes


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A poisoned job: given up after so many attempts. worker: the last one that held it."""

    job_id: str
    at_ms: int
    worker: str | None
    queue: str
    attempts: int
    reason: str = ErrorCode.POISONED


class Revival(StrEnum):
    """Outcome of pushing a dead letter back."""

    REVIVED = "revived"
    #: It was too long to be kept whole.
    CUT = "cut"
    UNKNOWN = "unknown"
