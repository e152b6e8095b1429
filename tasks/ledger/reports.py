"""What workers and batches say of themselves; each report is forgotten when its author falls silent."""

from dataclasses import dataclass

from pydantic import BaseModel

from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import Call, Script
from llama_herd.tasks.ledger.replies import read_reports
from llama_herd.tasks.worker_status import WorkerStatus

#: A worker that is silent this long is not listed any more.
WORKER_TTL_S = 10

_REPORT = Script("report", "clock")
_REPORTS = Script("reports", "clock")

#: Where reports of a kind are listed.
_INDEXES = {"worker": "workers", "batch": "batches"}


@dataclass(frozen=True)
class Reports(Keys):
    """All calls on one tenant's reports."""

    def report_worker(self, status: WorkerStatus) -> Call[None]:
        """Say that a worker lives, and how it is."""
        return self._report("worker", status.name, WORKER_TTL_S, status)

    def workers(self) -> Call[list[WorkerStatus]]:
        """Every worker that lives."""
        return Call(
            _REPORTS,
            (self.key("workers"),),
            (self.key("worker:"),),
            lambda reply: read_reports(reply, WorkerStatus),
        )

    def report_batch(self, status: BatchStatus) -> Call[None]:
        """Say that a batch runs and how it is, or how it has ended."""
        return self._report("batch", status.run_id, status.ttl_s, status)

    def batches(self) -> Call[list[BatchStatus]]:
        """Every batch that runs or ended lately."""
        return Call(
            _REPORTS,
            (self.key("batches"),),
            (self.key("batch:"),),
            lambda reply: read_reports(reply, BatchStatus),
        )

    def _report(self, kind: str, name: str, ttl_s: int, status: BaseModel) -> Call[None]:
        fields = [part for pair in status.model_dump(exclude={"beat_ms"}).items() for part in pair]
        keys = (self.key(f"{kind}:{name}"), self.key(_INDEXES[kind]))
        return Call(_REPORT, keys, (name, ttl_s, *fields), lambda reply: None)
