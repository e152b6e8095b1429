"""What the ledger answers: one small type for each outcome, so that a caller cannot overlook one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.events import Event
from llama_herd.tasks.ledger.passing import is_passing
from llama_herd.tasks.priority import NORMAL


class Submission(StrEnum):
    """What came of submitting a job."""

    SUBMITTED = "submitted"
    #: The id already names the very same job: a repeated call.
    EXISTS = "exists"
    #: The id already names a job that differs from this one.
    CONFLICT = "conflict"
    #: As many jobs wait as may.
    QUEUE_FULL = "queue_full"
    #: With this job more tokens would wait than may.
    TOKENS_FULL = "tokens_full"


class Submitted(NamedTuple):
    """What waits for the queue, this job not included; `taken_per_s`: jobs that workers took lately."""

    kind: Submission
    num_jobs: int = 0
    num_tokens: int = 0
    taken_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that the caller now owns under `epoch`, and how far it is recorded.

    attempts: workers that died while they prepared or computed it; one less than the limit: run it alone.
    starts: starts altogether. n: tokens recorded. seq: last event written.
    due_ms: when it was accepted, or its `not_before`. now_ms: time of this answer. lane: of its message.
    """

    epoch: int
    n: int
    seq: int
    attempts: int
    starts: int
    due_ms: int
    body: str
    now_ms: int
    deadline_ms: int | None = None
    lane: str = NORMAL

    @property
    def waited_s(self) -> float:
        """Seconds for which the job could have been run, by the clock of Redis."""
        return (self.now_ms - self.due_ms) / 1000


class Yours(Claimed):
    """The caller owns the job from now on."""


class Adopt(Claimed):
    """The caller has owned it all along: this message takes the old one's place.

    A caller that does not know the job lost the reply to its claim, and takes it like `Yours`.
    """


@dataclass(frozen=True, slots=True)
class Busy:
    """Another worker runs the job. Its lease lasts `remaining_ms` more unless renewed.

    0: the lease is over, but no sweep has given the worker up yet.
    """

    remaining_ms: int


@dataclass(frozen=True, slots=True)
class Early:
    """The job's `not_before` is to come: acknowledge. A sweep pushes another message when it is due."""


class Ended(StrEnum):
    """The final event stands in the stream: fold it into the result, store that, acknowledge."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POISON = "poison"


@dataclass(frozen=True, slots=True)
class Settled:
    """All is done, also on Celery's side, where links would be sent once more: acknowledge."""


@dataclass(frozen=True, slots=True)
class Settling:
    """The caller is the one who tells Celery how the job ended, as long as it asks again in time."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No record, and the message brought no job: it was forgotten or never accepted."""


ClaimAnswer = Yours | Adopt | Busy | Early | Ended | Settled | Unknown


class Emission(StrEnum):
    """What came of one event."""

    OK = "ok"
    #: Written before; a repeated call.
    DUPLICATE = "duplicate"
    #: Not the owner any more: drop the job, touch nothing of it.
    FENCED = "fenced"
    #: The job has its final event; this is another one.
    FINISHED = "finished"
    #: The job is to end; only `end` is taken now.
    CANCELLED = "cancelled"
    #: The log stands earlier than the caller believes: send again from there, with the same borders.
    GAP = "gap"
    #: Redis refused this job's stream; `reason` is what it said.
    ERROR = "error"
    #: Redis takes no call with this event, however often it is made; no script says so.
    REFUSED = "refused"


class Emitted(NamedTuple):
    """`seq` and `n` are what is recorded, known when the event was refused. `reason`: of cancel or error."""

    kind: Emission
    seq: int = 0
    n: int = 0
    reason: str = ""

    @property
    def is_full(self) -> bool:
        """Whether Redis had no room for the event, or may not write; it may again."""
        return self.kind is Emission.ERROR and is_passing(self.reason)


class Part(NamedTuple):
    """Some of a job's events, `num_bytes` long, and where to go on; empty: nowhere. n: tokens recorded."""

    n: int
    next: str
    events: list[Event]
    num_bytes: int


class Release(StrEnum):
    """What came of giving a job back."""

    RELEASED = "released"
    FINISHED = "finished"
    FENCED = "fenced"


class Renewal(StrEnum):
    """What came of renewing a lease."""

    OK = "ok"
    FENCED = "fenced"
    FINISHED = "finished"
    #: Renewed, and to be ended by its owner.
    CANCELLED = "cancelled"


class Renewed(NamedTuple):
    """`reason`: why the job is to end."""

    kind: Renewal
    reason: str = ""


class Cancellation(StrEnum):
    """What came of cancelling a job."""

    #: Nobody ran it; it has its final event now.
    CANCELLED = "cancelled"
    #: Its worker has been asked and ends it within a step.
    ASKED = "asked"
    FINISHED = "finished"
    #: No record. A message without one may still be in a queue: it is not cancelled.
    UNKNOWN = "unknown"


class Purge(StrEnum):
    """What came of forgetting a job."""

    PURGED = "purged"
    #: A worker runs it: cancel it, and wait for its end.
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Swept:
    """Jobs whose lost message was pushed again. `held`: live owners are given time, nothing was looked at."""

    jobs: tuple[str, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """Where a job stands. `worker` held it last; `due_ms`: since when it may be run."""

    state: str
    queue: str
    owner: str | None
    worker: str | None
    epoch: int
    seq: int
    n: int
    attempts: int
    starts: int
    cancel: str | None
    submitted_ms: int
    due_ms: int
    deadline_ms: int | None

    @property
    def is_final(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be accepted. `raw` may be cut; `num_bytes` is its full length."""

    number: str
    at_ms: int
    reason: str
    worker: str
    queue: str
    raw: bytes
    num_bytes: int

    @property
    def is_whole(self) -> bool:
        return len(self.raw) == self.num_bytes


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that was given up after `attempts`. `worker` is the last that held it."""

    job_id: str
    at_ms: int
    worker: str | None
    queue: str
    attempts: int
    reason: str = ErrorCode.POISONED


class Revival(StrEnum):
    """What came of pushing a dead letter back."""

    REVIVED = "revived"
    #: It was too long to be kept whole.
    CUT = "cut"
    UNKNOWN = "unknown"
