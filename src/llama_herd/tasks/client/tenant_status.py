"""The state of a whole tenant: its queues, workers and batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import end_all_left
from llama_herd.tasks.ledger.overview import MAX_LOOKS, Overview, QueueCounts
from llama_herd.tasks.ledger.pauses import end_of
from llama_herd.tasks.ledger.redis_call import RedisCall, together
from llama_herd.tasks.ledger.replies import rate_per_s
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.message import model_of, queue_name
from llama_herd.tasks.protocol.worker_status import DRAINING, WorkerStatus


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """State of one model's queue."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    model: str
    """The model that it is of."""
    queue: str
    """Its name."""
    depth: int
    """Messages in it."""
    waiting: int
    """Jobs that wait, the delayed ones too."""
    delayed: int
    """Jobs that wait for their `not_before`."""
    due: int
    """Jobs and bare messages that wait and may run now: with `running`, what a scaler counts."""
    running: int
    """Jobs that run; an estimate if more than 2,000 of the tenant do."""
    waiting_tokens: int
    """Tokens of the prompts and outputs of the jobs that wait."""
    oldest_s: float | None
    """How long the oldest waiting job has been due; None if unknown."""
    taken_per_s: float
    """Jobs a second that workers took lately."""
    workers: int
    """Workers that serve it, all but stopping ones."""
    loading: int
    """Those of them that load their model."""
    unserved_s: float | None
    """How long no worker has served it; None if one does, or none ever has."""
    tokens_per_s: float
    """Tokens a second of its jobs."""
    ttft_s: float | None
    """Time to the first token at the slowest worker; None if no job ended lately."""
    num_ended: int
    """Jobs that have ended at these workers."""
    num_failed: int
    """Those of them that failed."""
    stray: int = 0
    """Messages in lists of another `sep` than kombu's: workers lead them into the queue's own."""
    drained: int = 0
    """Those of its workers that are drained, or about to be: they take no jobs."""
    is_paused: bool = False
    """Whether workers take no jobs of it, since somebody has paused it."""
    paused_until_ms: int | None = None
    """When that ends by itself; None: it does not, or the queue is not paused."""

    @property
    def is_served(self) -> bool:
        return self.workers > 0

    @property
    def is_unserved(self) -> bool:
        """Whether nobody serves it, and nobody has paused it: then its name may be wrong."""
        return not (self.is_served or self.is_paused)

    @property
    def is_empty(self) -> bool:
        return not (self.depth or self.waiting or self.running)


@dataclass(frozen=True, slots=True)
class Status:
    """State of a tenant, and of the queue of the client's own model.

    depth: messages in that queue. pending, running: the tenant's jobs. queues: all that hold anything, are
    served or paused. batches: those that are running or ended within the last hour. poisoned: jobs that were
    given up. kept_bytes: what ended jobs keep of Redis; beyond kept_limit_bytes new ones are refused (0:
    never). owed: jobs that have ended, and of which Celery is to be told once the Redis of its results is
    there. now_ms: the time of all this by the clock of Redis.
    """

    queue: str
    depth: int
    pending: int
    running: int
    workers: list[WorkerStatus]
    batches: list[BatchStatus]
    queues: list[QueueStatus]
    dead_letters: int
    poisoned: int
    owed: int
    kept_bytes: int
    kept_limit_bytes: int
    now_ms: int

    def queue_of(self, model: str) -> QueueStatus | None:
        """The queue of a model, unless it is empty, not served and not paused."""
        return next((one for one in self.queues if one.model == model), None)

    @property
    def served_models(self) -> list[str]:
        return sorted(queue.model for queue in self.queues if queue.is_served)


async def read_status(ledger: Ledger, queue: str) -> Status:
    """Look at the whole tenant in a few round trips; `queue` is that of the client's own model."""
    await end_all_left(ledger)
    overview, reports = Overview(ledger.tenant), Reports(ledger.tenant)
    standing = (queue_name(model, ledger.tenant) for model in ledger.standing_models)
    calls: list[RedisCall[Any]] = [
        overview.counts(queue, *standing, max_looks=MAX_LOOKS),
        ledger.num_pending(),
        ledger.num_running(),
        reports.workers(),
        reports.batches(),
    ]
    found, pending, running, workers, batches = await together(calls)
    share = min(1.0, MAX_LOOKS / max(1, running))  # of the running jobs that were looked at
    queues = [_queue_status(counts, found.now_ms, ledger.tenant, workers, share) for counts in found.queues]
    shown = (one for one in queues if not (one.is_unserved and one.is_empty))
    return Status(
        queue=queue,
        depth=sum(one.depth for one in queues if one.queue == queue),
        pending=pending,
        running=running,
        workers=workers,
        batches=batches,
        queues=sorted(shown, key=lambda one: one.model),
        dead_letters=found.num_dead_letters,
        poisoned=found.num_poisoned,
        kept_bytes=found.kept_bytes,
        kept_limit_bytes=found.kept_limit_bytes,
        owed=found.num_owed,
        now_ms=found.now_ms,
    )


def _queue_status(
    counts: QueueCounts, now_ms: int, tenant: str, workers: Sequence[WorkerStatus], share: float
) -> QueueStatus:
    model = model_of(counts.queue, tenant)
    own = [worker for worker in workers if worker.model == model and worker.state != "stopping"]
    first_tokens = [worker.ttft_s for worker in own if worker.ttft_s]
    return QueueStatus(
        model=model,
        queue=counts.queue,
        depth=counts.num_messages,
        waiting=counts.num_jobs,
        delayed=counts.num_delayed,
        due=counts.num_due,
        running=round(counts.num_running / share),
        waiting_tokens=counts.num_tokens,
        oldest_s=_seconds(now_ms - counts.oldest_ms) if counts.oldest_ms else None,
        taken_per_s=round(rate_per_s(counts.num_taken, counts.span_ms), 3),
        workers=len(own),
        loading=sum(worker.state == "loading" for worker in own),
        unserved_s=_seconds(now_ms - counts.served_ms) if counts.served_ms and not own else None,
        tokens_per_s=round(sum(worker.tokens_per_s for worker in own), 1),
        ttft_s=max(first_tokens, default=None),
        num_ended=sum(worker.num_ended for worker in own),
        num_failed=sum(worker.num_failed for worker in own),
        stray=counts.num_stray,
        drained=sum(worker.state in DRAINING for worker in own),
        is_paused=counts.pause_ends_ms > 0,
        paused_until_ms=end_of(counts.pause_ends_ms) if counts.pause_ends_ms else None,
    )


def _seconds(ms: int) -> float:
    return max(0, ms) / 1000
