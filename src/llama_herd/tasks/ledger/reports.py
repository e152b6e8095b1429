"""Reports of workers and batches. A report expires when its author falls silent."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Argument, RedisCall
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.ledger.script_call import call
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus

#: A worker that has not reported for this long is no longer listed.
WORKER_TTL_S = 10
#: Most queues of which it is remembered that a worker has served them; those served last are kept.
MAX_SERVED = 1000

#: Most workers whose free rows are counted in one beat: those that have reported last.
MAX_ASKED = 100
#: Most workers or batches that are listed: managed Redis takes no more than about 4,000 keys and arguments.
MAX_REPORTS = 3_900
#: Most tenants of one beat.
MAX_BEATS = 50

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True)
class Reports(Keys):
    """All calls for one tenant's reports."""

    def report_worker(self, status: WorkerStatus) -> "RedisCall[list[BeatAnswer]]":
        """`beat` for this tenant alone."""
        return beat([Beat(self, status)])

    def workers(self) -> RedisCall[list[WorkerStatus]]:
        """All live workers."""
        return self._reports(WorkerStatus, "workers", "worker:", 1000 * WORKER_TTL_S)

    def report_batch(self, status: BatchStatus) -> RedisCall[bool]:
        """Store a batch's report: how far it is, or how it ended. Returns whether it was asked to end."""
        return call(
            "report",
            bool,
            report=self.key(f"batch:{status.run_id}"),
            index=self.key("batches"),
            name=status.run_id,
            life_s=status.ttl_s,
            fields=status.model_dump(exclude={"beat_ms"}),
        )

    def end_batch(self, run_id: str) -> RedisCall[bool]:
        """Ask a running batch to end. Returns whether there is one."""
        return call("end_batch", bool, report=self.key(f"batch:{run_id}"))

    def batches(self) -> RedisCall[list[BatchStatus]]:
        """All batches that are running or ended within the last hour."""
        return self._reports(BatchStatus, "batches", "batch:", None)

    def _reports(self, kind: type[S], index: str, prefix: str, longest_ms: int | None) -> RedisCall[list[S]]:
        return call(
            "reports",
            partial(_read_reports, kind),
            index=self.key(index),
            prefix=self.key(prefix),
            longest_ms=longest_ms,
            most=MAX_REPORTS,
        )


def _read_reports(kind: type[S], reply: list[list[bytes]]) -> list[S]:
    """Without those of another version that do not fit."""
    reports = []
    for flat in reply:
        texts = [text(part) for part in flat]
        with suppress(ValueError):
            reports.append(kind.model_validate(dict(zip(texts[::2], texts[1::2], strict=True))))
    return reports


@dataclass(frozen=True)
class Beat:
    """A worker's report to one tenant.

    kept_limit: how many bytes of Redis its ended jobs may keep before new ones are refused; 0: no limit;
    None: unknown, and as it was.
    """

    whose: Keys
    status: WorkerStatus
    kept_limit: int | None = None

    @property
    def entry(self) -> dict[str, Argument]:
        """It as BEAT takes it."""
        queue = queue_name(self.status.model, self.whose.tenant)
        return {
            "report": self.whose.key(f"worker:{self.status.name}"),
            **self.whose.keys_named("workers", "served", "paused", "drained", "kept"),
            "room": self.whose.key(f"room:{queue}"),
            "queue": "" if self.status.state == "stopping" else queue,
            "free": self.status.num_free,
            "kept_limit": "" if self.kept_limit is None else self.kept_limit,
        }


class BeatAnswer(NamedTuple):
    """What a worker hears of one tenant.

    num_free: rows that are free in other workers of the queue. is_paused: nobody is to take jobs of the
    queue. is_drained: this worker is to take none of the tenant. num_others: the other workers of the queue.
    complaint: what is wrong with a key of the tenant; empty: nothing. author: the process that has written
    the report before under this name; empty: it had not loaded its model; None: there was none.
    """

    num_free: int
    is_paused: bool
    is_drained: bool
    num_others: int = 0
    complaint: str = ""
    author: str | None = None

    @classmethod
    def parse(cls, reply: list[Any]) -> "BeatAnswer":
        free, num_others, paused_until_ms, drained_until_ms, author = reply
        is_wrong = not isinstance(free, int)
        return cls(
            0 if is_wrong else free,
            paused_until_ms > 0,
            drained_until_ms > 0,
            num_others,
            text(free) if is_wrong else "",
            None if author is None else text(author),
        )


def beat(beats: Sequence[Beat]) -> RedisCall[list[BeatAnswer]]:
    """Store a worker's reports, and note that its queues are served, unless the worker is stopping.

    Answers for each tenant what the worker should know.
    """
    fields = [one.status.model_dump(exclude={"beat_ms"}) for one in beats]
    common = {name: value for name, value in fields[0].items() if all(one[name] == value for one in fields)}
    return call(
        "beat",
        lambda reply: list(map(BeatAnswer.parse, reply)),
        name=beats[0].status.name,
        life_s=WORKER_TTL_S,
        max_served=MAX_SERVED,
        max_asked=MAX_ASKED,
        beats=[one.entry for one in beats],
        own=[
            {"beat": number, "field": name, "value": value}
            for number, one in enumerate(fields, 1)
            for name, value in one.items()
            if name not in common
        ],
        common=common,
    )
