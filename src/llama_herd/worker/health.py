"""Whether a worker is alive and ready, for those who start it again: containers, Kubernetes, systemd."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from llama_herd.tasks.ledger.reports import WORKER_TTL_S
from llama_herd.tasks.protocol.health import Health
from llama_herd.tasks.protocol.worker_status import SOUND, TROUBLE, WorkerState

if TYPE_CHECKING:  # it imports torch, and this answers before
    from llama_herd.worker.jobs.service import Service


class WorkerHealth:
    """Whether a worker is alive and ready, from the start of its process on. Any thread may ask.

    It asks nobody: the answer costs microseconds, also while Redis is away.
    """

    def __init__(self) -> None:
        self.phase: WorkerState = "loading"  # until there is a service; away: it waits for its server
        self.waits_for_redis = False
        self.loaded_percent = 0  # of the model's bytes
        self.service: Service | None = None  # once the model is loaded

    @property
    def pages(self) -> Mapping[str, Callable[[], Health]]:
        """The answers over HTTP, by their paths."""
        return {"/health/live": self.live, "/health/ready": self.ready}

    def live(self) -> Health:
        """Whether the worker is alive: it may load a model, or wait for Redis, as long as it takes.

        It is not when its engine has stood still for so long that its jobs are given to others. A worker that
        is silent or stuck otherwise ends by itself: see `Watchdog`.
        """
        if self.service is None:
            return Health.live()
        stall_s = self.service.standing.settings.stall_s
        is_stalled = self.service.standing.engine.is_stalled(stall_s)
        return Health.live(f"no layer of the model has finished for {stall_s:g} s" if is_stalled else "")

    def ready(self) -> Health:
        """Whether the worker runs jobs, or was drained, as its record in Redis says for others."""
        if self.waits_for_redis:
            return Health.ready("waiting for Redis: the log says what is in the way")
        if self.service is None:
            percent = f" {self.loaded_percent}%" if self.phase == "loading" else ""
            return Health.ready(f"{self.phase}{percent}: {TROUBLE[self.phase]}")
        standing = self.service.standing
        state = standing.state(*standing.tenancies)
        if state not in SOUND:
            return Health.ready(f"{state}: {TROUBLE[state]}")
        if self.service.unheard_s >= WORKER_TTL_S:
            return Health.ready(f"Redis has taken no report for {self.service.unheard_s:.0f} s")
        return Health.ready()
