"""The ledger: who owns which job, and what is recorded of it.

`Ledger` builds calls and reads replies. It has no connection (see `redis_call.py`). Its rules are the scripts
in `lua/`, its keys are in `keys.py`. All times are by the clock of Redis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from redis.exceptions import ResponseError

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.events import Event, Failure, parse_event
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger import held_jobs
from llama_herd.tasks.ledger.answers import (
    Busy,
    Cancellation,
    ClaimAnswer,
    Emitted,
    Origin,
    Part,
    Place,
    Purge,
    Record,
    Release,
    Renewed,
    Settled,
    Settling,
    Submitted,
    Swept,
)
from llama_herd.tasks.ledger.end_tail import LOST, end_tail
from llama_herd.tasks.ledger.entry import Entry
from llama_herd.tasks.ledger.held_jobs import Held, TenantEntry
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.notice import CancelReason, notice_text
from llama_herd.tasks.ledger.parcel import Parcel
from llama_herd.tasks.ledger.redis_call import Argument, Call, Script
from llama_herd.tasks.ledger.replies import (
    read_claim,
    read_names,
    read_origin,
    read_part,
    read_place,
    read_record,
    read_scores,
    read_settling,
    read_state,
    read_submitted,
    read_submitted_many,
    text,
)
from llama_herd.tasks.ledger.reports import WORKER_TTL_S
from llama_herd.tasks.message import Envelope, queue_name
from llama_herd.tasks.priority import LOW, NORMAL, URGENT, lane_of, lists_of
from llama_herd.tasks.settings import Settings

#: If the next message of a list is this much younger than a waiting job, that job's message counts as lost.
SWEEP_PATIENCE_MS = 3_000
#: A shorter time between two sweeps is no gap: they normally come once a second.
SWEEP_GAP_MS = 1_500
SWEEP_MAX_PUSHES = 64
#: Most jobs of dead workers that one sweep takes back: enough for the largest worker.
SWEEP_MAX_TAKEN = 1_100
SWEEP_MAX_LOOKS = 512
#: An attempt is sound once it has recorded this many tokens, or any token after this time. Then earlier
#: deaths no longer count against the job.
SOUND_TOKENS = 32
SOUND_MS = 30_000
#: Most webhooks of a tenant that wait to be sent, and as many that were given up.
MAX_OUTBOX = 100_000
#: The keys of SWEEP, and those whose lack says that there is nothing to sweep.
_SWEPT = ("pending", "delayed", "leases", "waiting", "sweep", "dead", "served")
_TO_SWEEP = ("pending", "delayed", "leases", "waiting", "dead", "outbox", "outbox:dead")
#: Start of a stream, as XRANGE takes it.
FIRST = "-"

_ACCEPTING = ("clock", "queue", "push", "waiting", "record", "accept")
_SUBMIT = Script("submit", *_ACCEPTING)
_SUBMIT_MANY = Script("submit_many", *_ACCEPTING)
_CLAIM = Script("claim", "clock", "declare", "life", "outbox", "waiting", "record", "end", "lost")
_RELEASE = Script("release", "clock", "declare", "queue", "push", "front", "waiting")
_SETTLING = Script("settling", "clock")
_SETTLE = Script("settle")
_CANCEL = Script("cancel", "clock", "declare", "life", "outbox", "waiting", "end")
_PURGE = Script("purge", "clock", "declare", "life", "outbox", "waiting", "end")
_SWEEP = Script(
    "sweep",
    "clock",
    "life",
    "queue",
    "push",
    "front",
    "outbox",
    "outbox_trim",
    "waiting",
    "end",
    "lost",
    builds_keys=True,
)
_TURNS = Script("turns", "clock")
_READ = Script("read")
_DEPTH = Script("depth")
_PLACE = Script("place", "clock")

#: The scripts that producers run.
PRODUCER_SCRIPTS = (_SUBMIT, _SUBMIT_MANY, _CANCEL)
#: Those with which clients look at single jobs, and delete them.
CLIENT_SCRIPTS = (_PLACE, _PURGE)


@dataclass(frozen=True)
class Ledger(Keys):
    """All calls for one tenant. The values must be the same in all processes that share it.

    worker: the name under which this process claims jobs.
    """

    lease_ms: int = 3000
    stream_ttl_s: int = 3600
    max_attempts: int = 3
    max_queue: int = 0
    max_queue_tokens: int = 0
    dead_ttl_s: int = 604_800
    worker: str = ""
    unserved_timeout_s: int = 0
    standing_models: tuple[str, ...] = ()
    sound_tokens: int = SOUND_TOKENS
    sound_ms: int = SOUND_MS
    max_outbox: int = MAX_OUTBOX

    @classmethod
    def of(cls, settings: Settings, worker: str = "") -> Self:
        return cls(
            settings.tenant,
            settings.lease_ms,
            settings.stream_ttl_s,
            settings.max_attempts,
            settings.max_queue,
            settings.max_queue_tokens,
            settings.dead_ttl_s,
            worker,
            settings.unserved_timeout_s,
            settings.standing_models,
        )

    @property
    def _poisoned(self) -> Failure:
        message = f"{self.max_attempts} workers died while they prepared or ran this job"
        return Failure(code=ErrorCode.POISONED, message=message)

    @property
    def _unserved(self) -> Failure:
        waited = f"no worker has ever served the job's model, for which it waited {self.unserved_timeout_s} s"
        return Failure(code=ErrorCode.UNSERVED, message=f"{waited}. Fix: check the name, or set HERD_MODELS")

    # The life of a job

    def submit(self, job_id: str, job: GenerationJob, envelope: Envelope) -> Call[Submitted]:
        """Accept a job: make its record, pending mark and message at once. Repeating it changes nothing.

        The message of a job with `not_before` is pushed by the first sweep after that time.
        """
        return Call(
            _SUBMIT,
            (
                self.job_key(job_id),
                *(self.key("pending"), self.deadlines_key, self.key("delayed")),
                *(self.key("waiting"), self.key("served")),
                *self._joined(job, envelope),
            ),
            (
                job_id,
                self.max_queue,
                self.max_queue_tokens,
                *_brought(job, envelope),
                1000 * WORKER_TTL_S,
                *_hook(job),
            ),
            read_submitted,
        )

    def parcel(self, job_id: str, job: GenerationJob, envelope: Envelope) -> Parcel:
        """A job for `submit_many`."""
        text, *rest = _brought(job, envelope)
        body = str(text).encode()
        args = (job_id, *_hook(job), body, *rest)
        keys = (self.job_key(job_id), envelope.queue)
        return Parcel(keys, self._joined(job, envelope), args, len(body) + len(envelope.text))

    def _joined(self, job: GenerationJob, envelope: Envelope) -> tuple[str, ...]:
        """Keys that a new job touches with others: its queue, all lists of that, and the line of its list."""
        lists = lists_of(envelope.queue)
        return (*lists, self.line_key(f"{envelope.queue}{lane_of(job.priority)}"))

    def submit_many(self, parcels: Sequence[Parcel]) -> Call[list[Submitted | ResponseError]]:
        """Accept jobs, each as `submit` does. There is one answer for each, in order.

        The error of one stands in the place of its answer; it was not accepted, and no other is affected.
        """
        keys = [*map(self.key, ("pending", "delayed", "waiting", "served")), self.deadlines_key]
        args: list[Argument] = [self.max_queue, self.max_queue_tokens, 1000 * WORKER_TTL_S]
        joined: dict[str, None] = {}
        for parcel in parcels:
            keys += parcel.keys
            args += parcel.args
            joined |= dict.fromkeys(parcel.joined)
        return Call(_SUBMIT_MANY, [*keys, *joined], args, read_submitted_many)

    def claim(
        self,
        job_id: str,
        owner: str,
        *,
        queue: str = "",
        job: GenerationJob | None = None,
        envelope: Envelope | None = None,
    ) -> Call[ClaimAnswer]:
        """Ask for a job whose message has come.

        `job` and `envelope` are those of a bare message: if the job has no record, it is made of them. If the
        job is cancelled, expired or poisoned, its final event is written before the answer. queue: where the
        message was. If the job's record names another one, or none is given, it takes a round trip more.
        """
        keys = (*self.ending_keys(job_id), self.key("quarantine"), *self._lines_of(queue))
        args: tuple[str | int, ...] = (
            job_id,
            self.channel(job_id),
            self.stream_ttl_s,
            owner,
            self.worker,
            self.lease_ms,
            self.max_attempts,
            self.dead_ttl_s,
            end_tail("cancelled"),
            end_tail("deadline"),
            end_tail("error", self._poisoned),
            end_tail("error", LOST),
        )
        if job is not None and envelope is not None:
            args = (*args, *_brought(job, envelope), *_hook(job), envelope.queue)
        return Call(_CLAIM, keys, args, read_claim)

    def _lines_of(self, queue: str) -> tuple[str, ...]:
        """Keys of the lines in which jobs of our clients wait for a queue; of no queue none."""
        return tuple(self.line_key(f"{queue}{lane}") for lane in (NORMAL, URGENT, LOW) if queue)

    def emit(self, owner: str, entries: Sequence[Entry]) -> Call[list[Emitted]]:
        """`held_jobs.emit` for events of this tenant."""
        return held_jobs.emit(owner, [TenantEntry(self, entry) for entry in entries], self)

    def renew(self, job_id: str, owner: str, epoch: int) -> Call[Renewed]:
        """`held_jobs.renew` for one job of this tenant."""
        call = held_jobs.renew(owner, [Held(self, job_id, epoch)], self)
        return Call(call.what, call.keys, call.args, lambda reply: call.parse(reply)[0])

    def release(self, job_id: str, owner: str, epoch: int, *, push: bool = False) -> Call[Release]:
        """Give a claimed job back to the queue; no death is counted. push: push its message again."""
        return Call(
            _RELEASE,
            (self.job_key(job_id), *map(self.key, ("pending", "leases", "waiting")), self.deadlines_key),
            (job_id, owner, epoch, int(push)),
            lambda reply: Release(text(reply)),
        )

    def settling(self, job_id: str, by: str, for_ms: int) -> Call[Settling | Busy | Settled]:
        """Ask to be the one who tells Celery how the job ended, for `for_ms`. Asking again prolongs it."""
        return Call(_SETTLING, (self.job_key(job_id),), (by, for_ms), read_settling)

    def settle(self, job_id: str) -> Call[bool]:
        """Note that Celery has result and links of the job. Answers whether the job was purged meanwhile."""
        return Call(_SETTLE, (self.job_key(job_id),), (), lambda reply: reply == b"purged")

    def cancel(self, job_id: str, reason: CancelReason = "cancelled") -> Call[Cancellation]:
        """End a job early: at once if no worker runs it, else by telling its owner."""
        is_late = reason in ("deadline", "expired")
        return Call(
            _CANCEL,
            self.ending_keys(job_id),
            (
                job_id,
                self.channel(job_id),
                self.stream_ttl_s,
                reason,
                "failed" if is_late else "cancelled",
                end_tail("deadline" if is_late else "cancelled"),
                notice_text(job_id, reason),
                self.notices_to(""),
            ),
            lambda reply: Cancellation(text(reply)),
        )

    def purge(self, job_id: str, *, mark: bool = False) -> Call[Purge]:
        """Delete a job's body, events and result, unless a worker runs it. A waiting job is cancelled first.

        Remaining messages do not run. mark: nor do those that may be there although the job has no record.
        """
        return Call(
            _PURGE,
            (*self.ending_keys(job_id), self.key("quarantine"), self.result_key(job_id)),
            (job_id, self.channel(job_id), self.stream_ttl_s, end_tail("cancelled"), int(mark)),
            lambda reply: Purge(text(reply)),
        )

    def unmark(self, job_id: str) -> Call[None]:
        """Take back the mark of a purge that has found nothing."""
        return Call("DEL", (self.job_key(job_id),), (), lambda reply: None)

    def sweep(self) -> Call[Swept]:
        """Push the lost messages again, and the messages of jobs that are now due.

        Every worker calls it about once a second; most calls do nothing. It also ends jobs that nobody runs
        and that are cancelled, past their deadline, or for too long in a queue that no worker ever served.
        """
        prefix, _, record = self.job_key("\0").partition("\0")
        events = self.events_key("\0").removeprefix(f"{prefix}\0")
        return Call(
            _SWEEP,
            [self.key(name) for name in _SWEPT],
            (
                prefix,
                record,
                events,
                self.channel(""),
                self.between_sweeps_ms,
                max(SWEEP_GAP_MS, self.lease_ms * 2 // 3),
                self.lease_ms,
                SWEEP_PATIENCE_MS,
                SWEEP_MAX_PUSHES,
                SWEEP_MAX_LOOKS,
                self.stream_ttl_s,
                self.dead_ttl_s,
                end_tail("deadline"),
                end_tail("cancelled"),
                SWEEP_MAX_TAKEN,
                1000 * self.unserved_timeout_s,
                end_tail("error", self._unserved),
                1000 * WORKER_TTL_S,
                end_tail("error", LOST),
                self.max_outbox,
                *(queue_name(model, self.tenant) for model in self.standing_models),
            ),
            lambda reply: Swept(tuple(map(text, reply[1:])), held=text(reply[0]) == "held"),
        )

    @property
    def between_sweeps_ms(self) -> int:
        """The shortest time between two sweeps."""
        return self.lease_ms // 6

    # Reading

    def read(self, job_id: str, after: int = 0, limit: int = 0) -> Call[list[Event]]:
        """The events of a job after event number `after`, at most `limit` of them. 0: all."""
        span = (f"({after}-0" if after else "-", "+")
        return Call(
            "XRANGE",
            (self.events_key(job_id),),
            (*span, "COUNT", limit) if limit else span,
            lambda reply: [parse_event(fields[b"e"]) for _, fields in reply],
        )

    def read_part(
        self, job_id: str, start: str, part_bytes: int, most_bytes: int, *, with_scores: bool
    ) -> Call[Part]:
        """Events of a job from `start` on, until they are `part_bytes` long.

        An event of more than `most_bytes` is an error, and so is anything that workers do not write.
        """
        return Call(
            _READ,
            (self.job_key(job_id), self.events_key(job_id)),
            (start, part_bytes, most_bytes, int(with_scores)),
            read_part,
        )

    def record(self, job_id: str) -> Call[Record | None]:
        """The record of a job, without its body; None if there is none."""
        names = Record.__slots__
        return Call(
            "HMGET",
            (self.job_key(job_id),),
            names,
            lambda reply: read_record(dict(zip(names, reply, strict=True))),
        )

    def state(self, job_id: str) -> Call[str | None]:
        """The state of a job; None if it has no record."""
        return Call("HGET", (self.job_key(job_id),), ("state",), read_state)

    def is_purged(self, job_id: str) -> Call[bool]:
        """Whether nothing is left of a job but the mark that it was purged."""
        return Call("HGET", (self.job_key(job_id),), ("state",), lambda reply: reply == b"purged")

    def body(self, job_id: str) -> Call[bytes | None]:
        """The JSON of a job as it was accepted; None if it has no record."""
        return Call("HGET", (self.job_key(job_id),), ("body",), lambda reply: reply)

    def webhook_secret(self, job_id: str) -> Call[str | None]:
        """What a job's webhook is signed with, if the job has brought it."""
        return Call("HGET", (self.job_key(job_id),), ("webhook_secret",), lambda raw: raw and text(raw))

    def origin(self, job_id: str) -> Call[Origin]:
        """Read the facts about a job's origin, for the log."""
        read = partial(read_origin, queue_name("", self.tenant))
        return Call("HMGET", (self.job_key(job_id),), ("queue", "starts", "envelope"), read)

    def place(self, job_id: str) -> Call[Place | None]:
        """Where a waiting job stands; None if it does not wait."""
        asked = self.places([job_id])
        return Call(asked.what, asked.keys, asked.args, lambda reply: read_place(reply[0]))

    def places(self, job_ids: Sequence[str]) -> Call[list[Place | None]]:
        """Where several waiting jobs stand; None for each that does not wait."""
        keys = (self.key("pending"), self.key("waiting"), *map(self.job_key, job_ids))
        return Call(_PLACE, keys, job_ids, lambda reply: list(map(read_place, reply)))

    def line_marks(self) -> tuple[Call[Any], ...]:
        """Calls whose answers change when a job joins or leaves those that wait: number, first, last."""
        pending = (self.key("pending"),)
        return (
            Call("ZCARD", pending, (), int),
            Call("ZRANGE", pending, (0, 0), tuple),
            Call("ZRANGE", pending, (-1, -1), tuple),
        )

    def with_news(self, cursors: Mapping[str, int]) -> Call[set[str]]:
        """The jobs that have events after the given numbers."""
        ids = {self.events_key(job_id).encode(): job_id for job_id in cursors}
        after = (f"{last}-0" for last in cursors.values())
        return Call("XREAD", (), ("COUNT", 1, "STREAMS", *ids, *after), partial(read_names, ids))

    def are_waiting(self, job_ids: Sequence[str]) -> Call[list[bool]]:
        """Tell for each job whether it waits."""
        return Call("ZMSCORE", (self.key("pending"),), job_ids, read_scores)

    def are_running(self, job_ids: Sequence[str]) -> Call[list[bool]]:
        """Which of these jobs workers own."""
        return Call("ZMSCORE", (self.key("leases"),), job_ids, read_scores)

    def queue_depth(self, queue: str) -> Call[int]:
        """Number of messages in a queue."""
        return Call(_DEPTH, lists_of(queue), (), int)

    def num_pending(self) -> Call[int]:
        """Number of waiting jobs."""
        return Call("ZCARD", (self.key("pending"),), (), int)

    def num_running(self) -> Call[int]:
        """Number of jobs that workers own."""
        return Call("ZCARD", (self.key("leases"),), (), int)


def _brought(job: GenerationJob, envelope: Envelope) -> tuple[str | int, ...]:
    """A new job as the arguments of `record.lua`."""
    return (
        job.to_json(),
        envelope.text,
        _optional(job.deadline_ms) if job.timeout_s is None else f"+{job.timeout_ms}",
        _optional(job.not_before),
        job.estimated_tokens,
        lane_of(job.priority),
    )


def _hook(job: GenerationJob) -> tuple[str, str]:
    """Where to tell of a job's end, and what to sign that with; empty: as the tenant's."""
    return job.webhook or "", job.webhook_secret or ""


def _optional(number: int | None) -> str:
    return "" if number is None else str(number)


def turns(ledgers: Sequence[Ledger]) -> Call[list[bool]]:
    """Which of these tenants are to be swept now. Of those without anything to sweep the time is noted.

    Every worker asks about once a second. Most of the answers are no: another worker has just swept.
    """
    return Call(
        _TURNS,
        [ledger.key(name) for ledger in ledgers for name in ("sweep", *_TO_SWEEP)],
        (min((ledger.between_sweeps_ms for ledger in ledgers), default=0),),
        lambda reply: [answer == 1 for answer in reply],
    )
