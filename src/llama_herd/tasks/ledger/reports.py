"""Reports of workers and batches. A report expires when its author falls silent."""

from dataclasses import dataclass

from pydantic import BaseModel

from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Call, Script
from llama_herd.tasks.ledger.replies import read_reports
from llama_herd.tasks.message import queue_name
from llama_herd.tasks.worker_status import WorkerStatus

#: A worker that has not reported for this long is no longer listed.
WORKER_TTL_S = 10
#: Most queues of which it is remembered that a worker has served them; those served last are kept.
MAX_SERVED = 1000

_REPORT = Script("report", "clock")
_REPORTS = Script("reports", "clock")
_END_BATCH = Script("end_batch")
SCRIPTS = (_REPORTS,)

#: The key that lists the reports of each kind.
_INDEXES = {"worker": "workers", "batch": "batches"}


@dataclass(frozen=True)
class Reports(Keys):
    """All calls for one tenant's reports."""

    def report_worker(self, status: WorkerStatus) -> Call[bool]:
        """Store a worker's report, and note that its queue is served, unless the worker is stopping."""
        queue = "" if status.state == "stopping" else queue_name(status.model, self.tenant)
        return self._report("worker", status.name, WORKER_TTL_S, status, queue)

    def workers(self) -> Call[list[WorkerStatus]]:
        """All live workers."""
        return Call(
            _REPORTS,
            (self.key("workers"),),
            (self.key("worker:"), 1000 * WORKER_TTL_S),
            lambda reply: read_reports(reply, WorkerStatus),
        )

    def report_batch(self, status: BatchStatus) -> Call[bool]:
        """Store a batch's report: how far it is, or how it ended. Returns whether it was asked to end."""
        return self._report("batch", status.run_id, status.ttl_s, status)

    def end_batch(self, run_id: str) -> Call[bool]:
        """Ask a running batch to end. Returns whether there is one."""
        return Call(_END_BATCH, (self.key(f"batch:{run_id}"),), (), bool)

    def batches(self) -> Call[list[BatchStatus]]:
        """All batches that are running or ended within the last hour."""
        return Call(
            _REPORTS,
            (self.key("batches"),),
            (self.key("batch:"), ""),
            lambda reply: read_reports(reply, BatchStatus),
        )

    def _report(self, kind: str, name: str, ttl_s: int, status: BaseModel, queue: str = "") -> Call[bool]:
        fields = [part for pair in status.model_dump(exclude={"beat_ms"}).items() for part in pair]
        keys = [self.key(f"{kind}:{name}"), self.key(_INDEXES[kind])]
        keys += [self.key("served")] if queue else []
        return Call(_REPORT, keys, (name, ttl_s, queue, MAX_SERVED, *fields), bool)
