"""The ledger: who owns which job, what is recorded of it, and every Redis key there is.

`Ledger` builds calls and reads replies; it holds no connection (see `llama_herd.tasks.call`). Its rules lie
in the scripts of `lua/`. All times are those of Redis.

    herd:<tenant>:{<id>}:job      hash    the record: state, owner, lease, epoch, seq, n, body, envelope ...
    herd:<tenant>:{<id>}:events   stream  the events, entry id <seq>-0, field e
    herd:<tenant>:tokens:<id>     channel the same events as they come
    herd:<tenant>:pending         zset    jobs that wait, by the time they were accepted
    herd:<tenant>:leases          zset    jobs that run, by the end of their lease
    herd:<tenant>:ctl             channel notices of cancelled jobs to the workers
    herd:<tenant>:worker:<name>   hash    how a worker is
    herd:<tenant>:workers         zset    their names, by when they are forgotten
    herd:<tenant>:dead            list    messages that could not be accepted
    herd:<tenant>:sweep           hash    when the last sweep was
    herd.<model>                  list    Celery's queue of a model
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from llama_herd.tasks.answers import (
    Cancellation,
    ClaimAnswer,
    DeadLetter,
    Emitted,
    Record,
    Release,
    Renewal,
    Renewed,
    Submission,
    Submitted,
    Swept,
)
from llama_herd.tasks.call import Call, Script
from llama_herd.tasks.events import End, Event, Token, parse_event
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.message import Envelope
from llama_herd.tasks.replies import read_claim, read_emit, read_letter, read_record, read_workers, text
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.worker_status import WorkerStatus

#: Age of a waiting job, against the front of its queue, at which its message is taken for lost.
SWEEP_PATIENCE_MS = 10_000
SWEEP_MAX_PUSHES = 64
SWEEP_MAX_LOOKS = 512
#: A worker that is silent this long is not listed any more.
WORKER_TTL_S = 10
MAX_DEAD_LETTERS = 1000
MAX_DEAD_LETTER_BYTES = 65_536

CancelReason = Literal["cancelled", "revoked", "deadline"]
FinalState = Literal["done", "failed", "cancelled"]

_SUBMIT = Script("submit", "clock", "push", "record")
_CLAIM = Script("claim", "clock", "record", "end")
_EMIT = Script("emit", "clock")
_RELEASE = Script("release", "clock", "push")
_RENEW = Script("renew", "clock")
_CANCEL = Script("cancel", "clock", "end")
_SWEEP = Script("sweep", "clock", "push")
_REPORT = Script("report", "clock")
_WORKERS = Script("workers", "clock")
_DEAD = Script("dead", "clock")


@dataclass(frozen=True, slots=True)
class Entry:
    """One event on its way into the log. `event` is its JSON, `i` the number of tokens recorded before it."""

    job_id: str
    epoch: int
    seq: int
    i: int
    num_ids: int
    kind: Literal["started", "token", "end"]
    event: str
    state: FinalState | Literal[""] = ""

    @classmethod
    def of(cls, event: Event, i: int) -> Self:
        """The entry of `event`, when `i` tokens are recorded before it."""
        num_ids = len(event.ids) if isinstance(event, Token) else 0
        state = final_state(event) if isinstance(event, End) else ""
        return cls(event.job, event.epoch, event.seq, i, num_ids, event.type, event.to_json(), state)


def final_state(end: End) -> FinalState:
    """The state of a job's record after this end."""
    match end.finish_reason:
        case "stop" | "length":
            return "done"
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"


@dataclass(frozen=True)
class Ledger:
    """All calls for one tenant. Same values in every process, or leases and ends differ between workers."""

    tenant: str = "default"
    lease_ms: int = 3000
    stream_ttl_s: int = 3600
    max_attempts: int = 3
    max_queue: int = 0

    @classmethod
    def of(cls, settings: Settings, *, max_queue: int = 0) -> Self:
        return cls(
            settings.tenant, settings.lease_ms, settings.stream_ttl_s, settings.max_attempts, max_queue
        )

    # Keys and channels

    def job_key(self, job_id: str) -> str:
        return f"herd:{self.tenant}:{{{job_id}}}:job"

    def events_key(self, job_id: str) -> str:
        return f"herd:{self.tenant}:{{{job_id}}}:events"

    def channel(self, job_id: str) -> str:
        """Where a job's events are published."""
        return self._key(f"tokens:{job_id}")

    @property
    def control_channel(self) -> str:
        """Where workers hear of cancelled jobs; `read_notice` reads what comes."""
        return self._key("ctl")

    @property
    def unacked_key(self) -> str:
        """Where kombu keeps what this tenant's workers have not acknowledged."""
        return self._key("unacked")

    def _key(self, name: str) -> str:
        return f"herd:{self.tenant}:{name}"

    # The life of a job

    def submit(self, job_id: str, job: GenerationJob, envelope: Envelope) -> Call[Submitted]:
        """Accept a job: record, pending mark and message at once. The same id again changes nothing."""
        return Call(
            _SUBMIT,
            (self.job_key(job_id), self._key("pending"), envelope.queue),
            (job_id, job.to_json(), envelope.text, _optional(job.deadline_ms), self.max_queue),
            lambda reply: Submitted(Submission(text(reply[0])), int(reply[1])),
        )

    def claim(
        self,
        job_id: str,
        owner: str,
        *,
        job: GenerationJob | None = None,
        envelope: Envelope | None = None,
    ) -> Call[ClaimAnswer]:
        """Ask for a job whose message has come.

        A message that was not sent by our client brings `job` and `envelope`; the record is made of them if
        there is none. The final event of a cancelled, expired or poisonous job is written before the answer.
        """
        body, queue, message, deadline = "", "", "", ""
        if job is not None and envelope is not None:
            body, queue, message = job.to_json(), envelope.queue, envelope.text
            deadline = _optional(job.deadline_ms)
        return Call(
            _CLAIM,
            self._job_keys(job_id),
            (
                job_id,
                self.channel(job_id),
                self.stream_ttl_s,
                owner,
                self.lease_ms,
                self.max_attempts,
                body,
                queue,
                message,
                deadline,
                _end_tail("cancelled"),
                _end_tail("deadline"),
                _end_tail("error", "poisoned", f"{self.max_attempts} attempts ended without a new token"),
            ),
            read_claim,
        )

    def emit(self, owner: str, entries: Sequence[Entry]) -> Call[list[Emitted]]:
        """Record and publish the events of one step; one answer an entry, in order.

        Sent again byte for byte it changes nothing: all are duplicates.
        """
        keys = [self._key("pending"), self._key("leases")]
        args: list[str | int] = [owner, self.lease_ms, self.stream_ttl_s, self.channel("")]
        for e in entries:
            keys += (self.job_key(e.job_id), self.events_key(e.job_id))
            args += (e.job_id, e.epoch, e.seq, e.i, e.num_ids, e.kind, e.state, e.event)
        return Call(_EMIT, keys, args, read_emit)

    def renew(self, job_id: str, owner: str, epoch: int) -> Call[Renewed]:
        """Prolong the lease of a job that emits nothing at the moment."""
        return Call(
            _RENEW,
            (self.job_key(job_id), self._key("leases")),
            (job_id, owner, epoch, self.lease_ms),
            lambda reply: Renewed(Renewal(text(reply[0])), text(reply[1])),
        )

    def release(self, job_id: str, owner: str, epoch: int, *, push: bool = False) -> Call[Release]:
        """Give a claimed job back; it costs no attempt. `push`: its message will not come back by itself."""
        return Call(
            _RELEASE,
            (self.job_key(job_id), self._key("pending"), self._key("leases")),
            (job_id, owner, epoch, int(push)),
            lambda reply: Release(text(reply)),
        )

    def cancel(self, job_id: str, reason: CancelReason = "cancelled") -> Call[Cancellation]:
        """End a job early: here if nobody runs it, else by asking its owner."""
        is_late = reason == "deadline"
        return Call(
            _CANCEL,
            (*self._job_keys(job_id), self.control_channel),
            (
                job_id,
                self.channel(job_id),
                self.stream_ttl_s,
                reason,
                "failed" if is_late else "cancelled",
                _end_tail("deadline" if is_late else "cancelled"),
                json.dumps({"v": 1, "job": job_id, "cancel": reason}),
            ),
            lambda reply: Cancellation(text(reply)),
        )

    def sweep(self) -> Call[Swept]:
        """Push lost messages again. Call it about once a second in every worker; most calls do nothing."""
        prefix, _, suffix = self.job_key("\0").partition("\0")
        return Call(
            _SWEEP,
            (self._key("pending"), self._key("leases"), self._key("sweep")),
            (
                prefix,
                suffix,
                self.lease_ms // 6,
                self.lease_ms * 2 // 3,
                self.lease_ms,
                SWEEP_PATIENCE_MS,
                SWEEP_MAX_PUSHES,
                SWEEP_MAX_LOOKS,
            ),
            lambda reply: Swept(tuple(map(text, reply[1:])), held=text(reply[0]) == "held"),
        )

    # Reading

    def read(self, job_id: str, after: int = 0) -> Call[list[Event]]:
        """The events of a job after the one with number `after`."""
        return Call(
            "XRANGE",
            (self.events_key(job_id),),
            (f"({after}-0" if after else "-", "+"),
            lambda reply: [parse_event(fields[b"e"]) for _, fields in reply],
        )

    def record(self, job_id: str) -> Call[Record | None]:
        """Where a job stands; None when it is not known."""
        names = Record.__slots__
        return Call(
            "HMGET",
            (self.job_key(job_id),),
            names,
            lambda reply: read_record(dict(zip(names, reply, strict=True))),
        )

    def queue_depth(self, queue: str) -> Call[int]:
        """Messages in a model's queue."""
        return Call("LLEN", (queue,), (), int)

    def num_pending(self) -> Call[int]:
        """Jobs that wait."""
        return Call("ZCARD", (self._key("pending"),), (), int)

    def num_running(self) -> Call[int]:
        """Jobs that a worker owns."""
        return Call("ZCARD", (self._key("leases"),), (), int)

    # Workers

    def report(self, status: WorkerStatus) -> Call[None]:
        """Say that a worker lives, and how it is."""
        fields = [part for pair in status.model_dump(exclude={"beat_ms"}).items() for part in pair]
        return Call(
            _REPORT,
            (self._key(f"worker:{status.name}"), self._key("workers")),
            (status.name, WORKER_TTL_S, *fields),
            lambda reply: None,
        )

    def workers(self) -> Call[list[WorkerStatus]]:
        """Every worker that lives."""
        return Call(_WORKERS, (self._key("workers"),), (self._key("worker:"),), read_workers)

    # Messages that could not be accepted

    def bury(self, raw: bytes, reason: str, worker: str) -> Call[None]:
        """Keep a message that could not be accepted, cut to 64 KiB, among the newest thousand."""
        letter = {
            "reason": reason,
            "worker": worker,
            "num_bytes": len(raw),
            "raw": base64.b64encode(raw[:MAX_DEAD_LETTER_BYTES]).decode(),
        }
        return Call(
            _DEAD, (self._key("dead"),), (MAX_DEAD_LETTERS, json.dumps(letter)[1:]), lambda reply: None
        )

    def dead_letters(self, limit: int = 100) -> Call[list[DeadLetter]]:
        """The newest messages that could not be accepted."""
        return Call(
            "LRANGE", (self._key("dead"),), (0, limit - 1), lambda reply: [read_letter(raw) for raw in reply]
        )

    def _job_keys(self, job_id: str) -> tuple[str, ...]:
        return (
            self.job_key(job_id),
            self.events_key(job_id),
            self._key("pending"),
            self._key("leases"),
        )


def read_notice(message: bytes) -> tuple[str, CancelReason]:
    """The job and the reason of a notice on the control channel."""
    notice = json.loads(message)
    return notice["job"], notice["cancel"]


def _end_tail(finish_reason: str, code: str = "", message: str = "") -> str:
    """The part of a final event's JSON that a script does not have to fill in."""
    error = {"code": code, "message": message, "retriable": False} if code else None
    tail = {
        "final": True,
        "finish_reason": finish_reason,
        "usage": None,
        "text_sha256": None,
        "error": error,
        "worker": None,
        "timings": None,
    }
    return json.dumps(tail, separators=(",", ":"))[1:]


def _optional(number: int | None) -> str:
    return "" if number is None else str(number)
