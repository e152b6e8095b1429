"""Reports of workers and batches. A report expires when its author falls silent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Argument, RedisCall
from llama_herd.tasks.ledger.replies import read_reports, text
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus

#: A worker that has not reported for this long is no longer listed.
WORKER_TTL_S = 10
#: Most queues of which it is remembered that a worker has served them; those served last are kept.
MAX_SERVED = 1000

#: Most workers that are asked for free rows in one beat: those with the most.
MAX_ASKED = 16
#: Most workers or batches that are listed: managed Redis takes no more than about 4,000 keys and arguments.
MAX_REPORTS = 3_900
#: Most tenants of one beat.
MAX_BEATS = 50

_BEAT = Script("beat", "clock")
_REPORT = Script("report", "clock")
_REPORTS = Script("reports", "clock", "listed")
_END_BATCH = Script("end_batch")
SCRIPTS = (_REPORTS,)


@dataclass(frozen=True)
class Reports(Keys):
    """All calls for one tenant's reports."""

    def report_worker(self, status: WorkerStatus) -> RedisCall[list[int | str]]:
        """`beat` for this tenant alone."""
        return beat([Beat(self, status)])

    def workers(self) -> RedisCall[list[WorkerStatus]]:
        """All live workers."""
        return RedisCall(
            _REPORTS,
            (self.key("workers"),),
            (self.key("worker:"), 1000 * WORKER_TTL_S, MAX_REPORTS),
            lambda reply: read_reports(reply, WorkerStatus),
        )

    def report_batch(self, status: BatchStatus) -> RedisCall[bool]:
        """Store a batch's report: how far it is, or how it ended. Returns whether it was asked to end."""
        fields = [part for pair in status.model_dump(exclude={"beat_ms"}).items() for part in pair]
        keys = (self.key(f"batch:{status.run_id}"), self.key("batches"))
        return RedisCall(_REPORT, keys, (status.run_id, status.ttl_s, *fields), bool)

    def end_batch(self, run_id: str) -> RedisCall[bool]:
        """Ask a running batch to end. Returns whether there is one."""
        return RedisCall(_END_BATCH, (self.key(f"batch:{run_id}"),), (), bool)

    def batches(self) -> RedisCall[list[BatchStatus]]:
        """All batches that are running or ended within the last hour."""
        return RedisCall(
            _REPORTS,
            (self.key("batches"),),
            (self.key("batch:"), "", MAX_REPORTS),
            lambda reply: read_reports(reply, BatchStatus),
        )


@dataclass(frozen=True)
class Beat:
    """A worker's report to one tenant. asks: for how many rows are free in other workers of the queue."""

    whose: Keys
    status: WorkerStatus
    asks: bool = False


def beat(beats: Sequence[Beat]) -> RedisCall[list[int | str]]:
    """Store a worker's reports, and note that its queues are served, unless the worker is stopping.

    Answers for each tenant the rows that are free in other workers, as far as was asked; or what is wrong
    with a key of the tenant.
    """
    fields = [one.status.model_dump(exclude={"beat_ms"}) for one in beats]
    common = {name: value for name, value in fields[0].items() if all(one[name] == value for one in fields)}
    name = beats[0].status.name
    keys: list[str] = []
    args: list[Argument] = [name, WORKER_TTL_S, MAX_SERVED, MAX_ASKED, len(common), *_flat(common)]
    for one, own in zip(beats, fields, strict=True):
        whose, status = one.whose, one.status
        queue = queue_name(status.model, whose.tenant)
        keys += (
            whose.key(f"worker:{name}"),
            whose.key("workers"),
            whose.key("served"),
            whose.key(f"room:{queue}"),
        )
        own = {field: value for field, value in own.items() if field not in common}
        args += (
            "" if status.state == "stopping" else queue,
            status.num_free,
            int(one.asks),
            len(own),
            *_flat(own),
        )
    return RedisCall(
        _BEAT, keys, args, lambda reply: [one if isinstance(one, int) else text(one) for one in reply]
    )


def _flat(fields: Mapping[str, Argument]) -> Iterator[Argument]:
    return chain.from_iterable(fields.items())
