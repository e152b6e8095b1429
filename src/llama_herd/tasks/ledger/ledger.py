"""The ledger: who owns which job, and what is recorded of it.

`Ledger` builds calls and parses their replies. It has no connection: see `redis_call.py`. Its rules are the
scripts in `lua/`, its keys are in `keys.py`. All times are by the clock of Redis.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ValidationError
from redis.exceptions import ResponseError

from llama_herd.counted import counted
from llama_herd.error_code import ErrorCode
from llama_herd.tasks.ledger.answers import (
    Adopt,
    Busy,
    Cancellation,
    CancelReason,
    ClaimAnswer,
    Early,
    Emitted,
    Ended,
    OwedJob,
    Purge,
    Release,
    Settled,
    Settling,
    Submitted,
    Unknown,
    Yours,
    read_emit,
)
from llama_herd.tasks.ledger.job_reads import JobReads
from llama_herd.tasks.ledger.keys import around_id
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.reports import WORKER_TTL_S
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.ledger.submit_item import SubmitItem, job_fields, read_submitted, read_submitted_many
from llama_herd.tasks.protocol.events import Failure, FinishReason
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import LOW, NORMAL, URGENT, lane_of, lists_of
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings

#: An attempt is sound once it has recorded this many tokens, or any token after this time. Then earlier
#: deaths no longer count against the job.
SOUND_TOKENS = 32
SOUND_MS = 30_000
#: Most webhooks of a tenant that wait to be sent, and as many that were given up.
MAX_OUTBOX = 100_000


@dataclass(frozen=True)
class Ledger(JobReads):
    """All calls that change one tenant's jobs, and those that read them.

    The values must be the same in all processes that serve the tenant.

    worker: the name under which this process claims jobs.
    """

    lease_ms: int = 3000
    stream_ttl_s: int = 3600
    max_deaths: int = 3
    max_queue: int = 0
    max_queue_tokens: int = 0
    dead_ttl_s: int = 604_800
    worker: str = ""
    unserved_timeout_s: int = 0
    standing_models: tuple[str, ...] = ()
    sound_tokens: int = SOUND_TOKENS
    sound_ms: int = SOUND_MS
    max_outbox: int = MAX_OUTBOX
    failed_ttl_s: int = 86_400
    result_ttl_s: int = 86_400
    bulk_ttl_s: int = 345_600

    @classmethod
    def from_settings(cls, settings: Settings, worker: str = "") -> Self:
        return cls(
            settings.tenant,
            settings.lease_ms,
            settings.stream_ttl_s,
            settings.max_deaths,
            settings.max_queue,
            settings.max_queue_tokens,
            settings.dead_ttl_s,
            worker,
            settings.unserved_timeout_s,
            settings.standing_models,
            failed_ttl_s=settings.failed_ttl_s,
            result_ttl_s=settings.result_ttl_s,
            bulk_ttl_s=settings.bulk_ttl_s,
        )

    def submit(self, job_id: str, job: Job, envelope: Envelope) -> RedisCall[Submitted]:
        """Accept a job: make its record, pending mark and message at once. Repeating it changes nothing.

        The message of a job with `not_before` is pushed by the first sweep after that time.
        """
        return self.submit_one(self.submit_item(job_id, job, envelope))

    def submit_one(self, item: SubmitItem) -> RedisCall[Submitted]:
        """`submit` for one of the jobs that `submit_many` takes."""
        keys = self.keys_named("pending", "deadlines", "delayed", "waiting", "served", "kept")
        return call("submit", read_submitted, **keys, **self._limits, **item.entry, lists=item.lists[1:])

    def submit_item(self, job_id: str, job: Job, envelope: Envelope, keep_s: int | None = None) -> SubmitItem:
        """A job for `submit_many`. keep_s: how long it is kept after its end if it does not say so itself."""
        body = job.to_json().encode()
        entry = {"job": self.job_key(job_id), "id": job_id, **job_fields(job, envelope, body, keep_s)}
        lists = (*lists_of(envelope.queue), self.line_key(f"{envelope.queue}{lane_of(job.priority)}"))
        return SubmitItem(entry, lists, len(body) + len(envelope.text))

    def submit_many(self, items: Sequence[SubmitItem]) -> RedisCall[list[Submitted | ResponseError]]:
        """Accept jobs, each as `submit` does. There is one answer for each, in order.

        The error of one stands in the place of its answer; it was not accepted, and no other is affected.
        """
        return call(
            "submit_many",
            read_submitted_many,
            **self.keys_named("pending", "delayed", "waiting", "served", "deadlines", "kept"),
            **self._limits,
            jobs=[item.entry for item in items],
            lists=list(dict.fromkeys(key for item in items for key in item.lists)),
        )

    @property
    def _limits(self) -> dict[str, int]:
        served_ms = 1000 * WORKER_TTL_S
        return {"max_jobs": self.max_queue, "max_tokens": self.max_queue_tokens, "served_ms": served_ms}

    def claim(
        self,
        job_id: str,
        owner: str,
        *,
        queue: str = "",
        job: Job | None = None,
        envelope: Envelope | None = None,
    ) -> RedisCall[ClaimAnswer]:
        """Ask for a job whose message has come.

        `job` and `envelope` are those of a bare message: if the job has no record, it is made of them. If the
        job is cancelled, expired or poisoned, its final event is written before the answer. queue: where the
        message was. If the job's record names another one, or none is given, it takes a round trip more.
        """
        poisoned = f"{counted(self.max_deaths, 'worker')} died while preparing or running this job"
        return call(
            "claim",
            read_claim,
            **self._ending(job_id),
            **self.keys_named("quarantine"),
            owner=owner,
            worker=self.worker,
            lease_ms=self.lease_ms,
            max_deaths=self.max_deaths,
            quarantined_s=self.dead_ttl_s,
            cancelled_tail=end_tail("cancelled"),
            late_tail=end_tail("deadline"),
            poisoned_tail=end_tail("error", Failure(code=ErrorCode.POISONED, message=poisoned)),
            lost_tail=end_tail("error", LOST),
            bare=[job_fields(job, envelope, job.to_json().encode())] if job and envelope else [],
            lines=[self.line_key(f"{queue}{lane}") for lane in (NORMAL, URGENT, LOW) if queue],
        )

    def _ending(self, job_id: str) -> dict[str, str | int]:
        """What scripts take that may end a job, but for the line in which it waits."""
        return {
            **self.keys_named("pending", "delayed", "leases", "waiting", "deadlines", "untold"),
            **self.ending_keys,
            "job": self.job_key(job_id),
            "events": self.events_key(job_id),
            "id": job_id,
            "channel": self.channel(job_id),
            "ttl_s": self.stream_ttl_s,
            "failed_s": self.failed_ttl_s,
        }

    def release(
        self, job_id: str, owner: str, epoch: int, *, push: bool = False, has_died: bool = False
    ) -> RedisCall[Release]:
        """Give a claimed job back to the queue. push: push its message again.

        has_died: what computed it has died, which counts as a worker's death does.
        """
        return call(
            "release",
            lambda reply: Release(text(reply)),
            job=self.job_key(job_id),
            **self.keys_named("pending", "leases", "waiting", "deadlines"),
            id=job_id,
            owner=owner,
            epoch=epoch,
            pushes=int(push),
            has_died=int(has_died),
        )

    def retry(
        self, job_id: str, owner: str, epoch: int, *, seq: int, delay_ms: int, left: int, error: Failure
    ) -> RedisCall[Emitted]:
        """Put back a claimed job whose attempt has failed with `error`; it is due again after `delay_ms`.

        seq: the last event that its owner has sent. left: how often it may be put back after this.
        """
        return call(
            "retry",
            lambda reply: read_emit([reply])[0],
            job=self.job_key(job_id),
            **self.keys_named("pending", "delayed", "leases", "waiting", "deadlines"),
            id=job_id,
            owner=owner,
            epoch=epoch,
            seq=seq,
            delay_ms=delay_ms,
            left=left,
            error=error.model_dump_json(),
        )

    def settling(self, job_id: str, by: str, for_ms: int) -> RedisCall[Settling | Busy | Settled]:
        """Ask to be the one who tells Celery how the job ended, for `for_ms`. Asking again prolongs it."""
        return call("settling", read_settling, job=self.job_key(job_id), caller=by, for_ms=for_ms)

    def settle(
        self, job_id: str, value: bytes = b"", life_s: int = 0, *, is_elsewhere: bool = False
    ) -> RedisCall[bool]:
        """Note that Celery has result and links of the job: nothing is owed of it from then on.

        value: the result, to be stored for life_s (0: for ever) and announced; empty: there is none, or it is
        stored. is_elsewhere: in another Redis. Answers whether the job was purged meanwhile.
        """
        return call(
            "settle",
            lambda reply: reply == b"purged",
            **self._debt(job_id),
            result=self.result_key(job_id),
            is_elsewhere=int(is_elsewhere),
            value=value,
            life_s=life_s,
        )

    def result_life_s(self, keep_s: int | None, result: Result) -> int | None:
        """How long Celery keeps a result: as long as the job asks for, and a failure `failed_ttl_s` at least.

        None: as Celery's app says, HERD_RESULT_TTL_S.
        """
        has_failed = result.finish_reason in ("error", "deadline")
        if has_failed:
            return max(self.result_ttl_s if keep_s is None else keep_s, self.failed_ttl_s)
        return keep_s

    def owe(self, job_id: str, in_ms: int, *, has_sent_links: bool) -> RedisCall[None]:
        """Note that Celery is to be told in `in_ms` how the job ended. It is kept until then."""
        return call(
            "owe",
            lambda reply: None,
            **self._debt(job_id),
            in_ms=in_ms,
            life_s=self.dead_ttl_s,
            sent_links=int(has_sent_links),
        )

    def owed(self, most: int, again_ms: int) -> RedisCall[list[OwedJob]]:
        """The jobs of whose end Celery is to be told now, due again in `again_ms` unless settled by then.

        Where no worker serves the queue, their messages go that are next in their lists.
        """
        return call(
            "owed",
            lambda reply: [OwedJob(text(id), raw) for id, raw in zip(reply[::2], reply[1::2], strict=True)],
            **self.keys_named("owed", "untold", "pending", "leases", "served"),
            most=most,
            again_ms=again_ms,
            served_ms=1000 * WORKER_TTL_S,
            **around_id(self.job_key),
        )

    def _debt(self, job_id: str) -> dict[str, str]:
        keys = {"job": self.job_key(job_id), "events": self.events_key(job_id)}
        return {**keys, **self.keys_named("owed", "untold", "kept"), "id": job_id}

    def cancel(self, job_id: str, reason: CancelReason = "cancelled") -> RedisCall[Cancellation]:
        """End a job early: at once if no worker runs it, else by telling its owner."""
        is_late = reason == "deadline"
        return call(
            "cancel",
            lambda reply: Cancellation(text(reply)),
            **self._ending(job_id),
            reason=reason,
            end_state="failed" if is_late else "cancelled",
            end_tail=end_tail("deadline" if is_late else "cancelled"),
            notice=json.dumps({"v": 1, "job": job_id, "cancel": reason}),
            notices_to=self.notices_to(""),
        )

    def purge(self, job_id: str, *, mark: bool = False) -> RedisCall[Purge]:
        """Delete a job's body, events and result, unless a worker runs it. A waiting job is cancelled first.

        Remaining messages do not run. mark: nor do those that may be there although the job has no record.
        """
        return call(
            "purge",
            lambda reply: Purge(text(reply)),
            **self._ending(job_id),
            **self.keys_named("quarantine", "owed"),
            result=self.result_key(job_id),
            end_tail=end_tail("cancelled"),
            marks=int(mark),
        )

    def unmark(self, job_id: str) -> RedisCall[None]:
        """Take back the mark of a purge that has found nothing."""
        return RedisCall("DEL", (self.job_key(job_id),), (), lambda reply: None)

    @property
    def between_sweeps_ms(self) -> int:
        """The shortest time between two sweeps."""
        return self.lease_ms // 6


#: Anybody may have written a record. A worker could not continue with numbers out of this range.
_NUMBERS = range(10**16)
#: Longest wait before a job that another worker owns is asked for again.
_MAX_BUSY_MS = 5_000

#: The answers to a claim that say nothing but their name.
_PLAIN: dict[str, ClaimAnswer] = {"early": Early(), "settled": Settled(), "unknown": Unknown()}


def _number(raw: bytes | int) -> int:
    """Raises ValueError."""
    number = int(raw)
    if number not in _NUMBERS:
        raise ValueError("not a number that the ledger writes")
    return number


def read_claim(reply: list[Any]) -> ClaimAnswer:
    match kind := text(reply[0]):
        case "yours" | "adopt":
            now_ms, epoch, n, seq, deaths, attempts, due_ms = map(_number, reply[1:8])
            deadline_ms = _number(reply[8]) if reply[8] else None
            body, lane, retries = text(reply[9]), text(reply[10] or b""), _number(reply[11] or 0)
            claimed = Yours if kind == "yours" else Adopt
            return claimed(epoch, n, seq, deaths, attempts, due_ms, body, now_ms, deadline_ms, lane, retries)
        case "busy":
            return Busy(min(int(reply[1]), _MAX_BUSY_MS))
        case _:
            return _PLAIN.get(kind) or Ended(kind)


def read_settling(reply: list[Any]) -> Settling | Busy | Settled:
    """A purged job counts as settled. A forgotten one is the caller's: nobody else is at it."""
    match text(reply[0]):
        case "busy":
            return Busy(int(reply[1]))
        case "settled" | "purged":
            return Settled()
        case _:
            keep_s, sent_links = (*reply[1:], b"", b"")[:2]  # nothing is known of a forgotten one
            return Settling(int(keep_s) if keep_s else None, bool(sent_links))


#: The end of a job of which Redis has lost a part.
LOST = Failure(
    code=ErrorCode.UNREADABLE,
    message="Redis has lost the record or the events of this job: it evicts keys, or somebody has deleted "
    "them. Fix: redis-cli CONFIG SET maxmemory-policy noeviction, then submit the job again",
)


def end_tail(finish_reason: FinishReason, error: Failure | None = None) -> str:
    """The rest of a final event's JSON, after the fields that a script fills in."""
    tail = {
        "final": True,
        "finish_reason": finish_reason,
        "stop_reason": None,
        "usage": None,
        "text_sha256": None,
        "error": error and error.model_dump(),
        "timings": None,
    }
    return json.dumps(tail, separators=(",", ":"))[1:]


class Notice(BaseModel):
    """Which job to end, and why."""

    job: str
    cancel: CancelReason


def read_notice(message: bytes) -> Notice | None:
    """Parse a message of the control channel. None if it is no notice: every producer may publish there."""
    try:
        return Notice.model_validate_json(message)
    except ValidationError:
        return None
