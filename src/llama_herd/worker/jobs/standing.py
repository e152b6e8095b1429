"""What a worker says of itself: the state that it is in, its status, and the facts that never change."""

import json
from dataclasses import dataclass, field
from time import time
from typing import Any, Protocol

from llama_herd.tasks.connection.redis_url import masked
from llama_herd.tasks.protocol.worker_status import WorkerState, WorkerStatus
from llama_herd.worker.engine.interface import JobEngine
from llama_herd.worker.jobs.link_watch import LinkWatch, UnreadList
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy
from llama_herd.worker.jobs.watchdog import UNREADY_S, Watchdog
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.settings import WorkerSettings

#: After this long without a layer a worker reports itself as stalled. It keeps its jobs until `stall_s`: a
#: report can be taken back the next second, but jobs that were given away are computed twice.
STALL_SHOWN_S = 15.0


class ModelSize(Protocol):
    """What is said of a model's size: in tokens, in bytes, and of the form of its weights."""

    @property
    def kv_cache_tokens(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def keeps_blocks(self) -> bool:
        """Whether weights stay in the blocks of their file."""

    @property
    def num_bytes(self) -> int: ...


@dataclass(eq=False)
class Standing:
    """What users, people and metrics are told of a worker. Any thread may ask."""

    settings: WorkerSettings
    worker: str
    plan: ModelSize
    maker: SequenceMaker
    tenancies: Tenancies
    engine: JobEngine
    watchdog: Watchdog
    links: LinkWatch
    started_ms: int = field(default_factory=lambda: int(1000 * time()))
    phase: WorkerState = "starting"  # how far it has come: starting, ready or stopping

    def state(self, *tenancies: Tenancy) -> WorkerState:
        """The worker's state, as these tenants see it.

        Away: the server that computes does not answer.
        Ready: model loaded, messages of a queue are taken, all parts progress. Drained: none of these
        tenants' jobs is here, and none is taken.
        """
        if self.phase != "ready":
            return self.phase
        if self.engine.stats.away_since_s is not None:
            return "away"
        if self.engine.is_stalled(min(STALL_SHOWN_S, self.settings.stall_s)):
            return "stalled"
        if self.watchdog.silent_s >= UNREADY_S:
            return "silent"
        if self.watchdog.stuck_s >= UNREADY_S:
            return "stuck"
        if set(self.tenancies.queues) <= self.watchdog.spoilt.names:
            return "spoilt"
        if any(one.drained_since_s is None for one in tenancies):
            return "ready"
        return "draining" if any(one.claims for one in tenancies) else "drained"

    def status(self, queue: str = "") -> WorkerStatus:
        """The worker's status, as users of this queue may see it: without names or keys of other tenants.

        Without a queue it is of all tenants.
        """
        stats, spoilt = self.engine.stats, self.watchdog.spoilt.found.get(queue)
        tenancy = self.tenancies.for_queue(queue)
        unread = next(iter(self.links.unread(tenancy)), UnreadList("", 0, 0.0))
        return WorkerStatus(
            name=self.worker,
            state=self.state(*([tenancy] if queue else self.tenancies)),
            model=self.settings.served_model,
            device=self.settings.device,
            weights_digest=self.maker.weights_digest,
            slots=self.settings.slots,
            chats="yes" if self.maker.chat else "",
            sampling=json.dumps(self.maker.sampling) if self.maker.sampling else "",
            started_ms=self.started_ms,
            max_length=self.maker.room,
            running=stats.num_running,
            waiting=self.engine.num_waiting,
            steps=stats.num_steps,
            kv_cache_tokens=self.plan.kv_cache_tokens,
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
            evicts=self.watchdog.evicts,
            unread_list=unread.name,
            unread_messages=unread.num_messages,
            unread_s=round(unread.seconds, 1),
            later_tasks=self.watchdog.later.found.get(queue, 0),
        )

    @property
    def kind(self) -> dict[str, str]:
        """The types of the worker's numbers, and its weights: in which form, and which."""
        form = "blocks" if self.plan.keeps_blocks else "dense"
        return {"dtype": self.plan.dtype, "weights": form, "weights_digest": self.maker.weights_digest}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that a started worker prints and logs, the most important first."""
        settings = self.settings
        return {
            "worker": self.worker,
            "model": settings.served_model,
            "device": settings.device,
            **self.kind,
            "slots": settings.slots,
            "kv_cache_tokens": self.plan.kv_cache_tokens,
            "memory_bytes": self.plan.num_bytes,
            "queue": ", ".join(self.tenancies.queues),
            "redis": masked(settings.redis_url),
            **({"results": masked(settings.results_url)} if settings.keeps_results_elsewhere else {}),
            "metrics_port": settings.metrics_port or None,
        }
