"""What a worker says of itself: the state that it is in, its status, and the facts that never change."""

from time import time
from typing import Any

from llama_herd.tasks.connection.redis_url import masked
from llama_herd.tasks.protocol.worker_status import WorkerState, WorkerStatus
from llama_herd.worker.engine.interface import JobEngine
from llama_herd.worker.jobs.tenancy import Tenancies
from llama_herd.worker.jobs.watchdog import UNREADY_S, Watchdog
from llama_herd.worker.loading.memory_plan import MemoryPlan
from llama_herd.worker.settings import WorkerSettings

#: After this long without a layer a worker reports itself as stalled. It keeps its jobs until `stall_s`: a
#: report can be taken back the next second, but jobs that were given away are computed twice.
STALL_SHOWN_S = 15.0


class Standing:
    """What users, people and metrics are told of a worker. Any thread may ask."""

    def __init__(
        self,
        settings: WorkerSettings,
        worker: str,
        plan: MemoryPlan,
        tenancies: Tenancies,
        *,
        engine: JobEngine,
        watchdog: Watchdog,
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._plan = plan
        self._tenancies = tenancies
        self._engine = engine
        self._watchdog = watchdog
        self._started_ms = int(1000 * time())
        #: How far it has come: starting, ready or stopping.
        self.phase: WorkerState = "starting"

    @property
    def state(self) -> WorkerState:
        """The worker's state. Ready: model loaded, messages of a queue are taken, all parts progress."""
        if self.phase != "ready":
            return self.phase
        if self._engine.is_stalled(min(STALL_SHOWN_S, self._settings.stall_s)):
            return "stalled"
        if self._watchdog.silent_s >= UNREADY_S:
            return "silent"
        if self._watchdog.stuck_s >= UNREADY_S:
            return "stuck"
        return "spoilt" if set(self._tenancies.queues) <= self._watchdog.spoilt.names else "ready"

    def status(self, queue: str = "") -> WorkerStatus:
        """The worker's status, as users of this queue may see it: without names or keys of other tenants."""
        stats, spoilt = self._engine.stats, self._watchdog.spoilt.found.get(queue)
        tenancy = self._tenancies.for_queue(queue)
        return WorkerStatus(
            name=self._worker,
            state=self.state,
            model=self._settings.served_model,
            device=self._settings.device,
            slots=self._settings.slots,
            started_ms=self._started_ms,
            max_length=min(self._plan.max_length, self._plan.kv_cache_tokens),
            running=stats.num_running,
            waiting=self._engine.num_waiting,
            steps=stats.num_steps,
            kv_cache_tokens=self._plan.kv_cache_tokens,
            kv_cache_usage=round(stats.kv_cache_usage, 4),
            prefix_hit_rate=round(stats.prefix_hit_rate, 4),
            prefix_cache_hits=stats.num_prefix_tokens,
            tokens_per_s=round(tenancy.recent.tokens_per_s, 1),
            ttft_s=round(tenancy.recent.ttft_s, 6),
            num_ended=tenancy.figures.num_ended,
            num_failed=tenancy.figures.num_failed,
            left_out=queue if spoilt else "",
            spoilt_key=spoilt.key if spoilt else "",
            spoilt_type=spoilt.type if spoilt else "",
            evicts=self._watchdog.evicts,
        )

    @property
    def kind(self) -> dict[str, str]:
        """The types of the worker's numbers and the form of its weights, which its status does not say."""
        return {"dtype": self._plan.dtype, "weights": "blocks" if self._plan.keeps_blocks else "dense"}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that a started worker prints and logs, the most important first."""
        settings = self._settings
        return {
            "worker": self._worker,
            "model": settings.served_model,
            "device": settings.device,
            **self.kind,
            "slots": settings.slots,
            "kv_cache_tokens": self._plan.kv_cache_tokens,
            "memory_bytes": self._plan.num_bytes,
            "queue": ", ".join(self._tenancies.queues),
            "redis": masked(settings.redis_url),
            "metrics_port": settings.metrics_port or None,
        }
