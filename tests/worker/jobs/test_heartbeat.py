"""What a worker reports, and when."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from llama_herd.chaos.patience import wait_until
from llama_herd.tasks.ledger.redis_call import run
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.worker_status import WorkerStatus
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs import heartbeat
from llama_herd.worker.jobs.heartbeat import Heartbeat
from tests.worker.jobs.tenancies import alone, new_tenancy

pytestmark = pytest.mark.redis


class StillEngine:
    """Is never stalled, and has no job."""

    def is_stalled(self, _: float) -> bool:
        return False


class Worker:
    """A heartbeat, and the state that it reports. `when_asked` is what happens while it reports."""

    def __init__(self, redis: Any) -> None:
        self.state = "loading"
        self.when_asked: Iterator[None] = iter(())
        self.heartbeat = Heartbeat(
            redis,
            "owner",
            alone(new_tenancy(redis)),
            engine=cast(EngineThread, StillEngine()),
            status=self.status,
            stall_s=30.0,
        )

    def status(self, _: str) -> WorkerStatus:
        told = WorkerStatus(name="w", state=self.state, model="m", device="cpu", slots=1)
        next(self.when_asked, None)
        return told

    def become_ready(self) -> Iterator[None]:
        self.state = "ready"
        self.heartbeat.report_soon()
        yield


def states(redis: Any) -> list[str]:
    return [one.state for one in run(redis, Reports().workers())]


def test_a_state_that_changes_during_a_report_is_reported_soon(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "IDLE_REPORT_S", 3600.0)
    worker = Worker(redis)
    worker.when_asked = worker.become_ready()
    worker.heartbeat.start()
    try:
        wait_until(lambda: states(redis) == ["ready"], "it reports that it is ready")
    finally:
        worker.heartbeat.stop()
