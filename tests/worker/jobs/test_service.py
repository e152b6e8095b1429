"""What a worker says of itself while its engine stands still."""

import threading
from collections.abc import Iterator

import pytest
from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.jobs.standing import STALL_SHOWN_S
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import wait_until

pytestmark = pytest.mark.redis


@pytest.fixture
def gate(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Now that the service has started, no step ends before it is set."""
    gate, step = threading.Event(), Engine.step

    def held_step(engine: Engine) -> None:
        gate.wait()
        step(engine)

    monkeypatch.setattr(Engine, "step", held_step)
    yield gate
    gate.set()


def test_a_worker_that_stops_at_once_is_not_ready_any_more(service: Service, redis_url: str) -> None:
    service.note_consuming()
    with Client(redis_url) as client:
        wait_until(lambda: [one.state for one in client.workers()] == ["ready"], "it is ready")
        service.drain(0.0, lambda: None)
        assert [one.state for one in client.workers()] == ["stopping"]


@pytest.mark.long
def test_a_stall_is_shown_before_the_jobs_are_given_away(
    gate: threading.Event,
    service: Service,
    model: LoadedModel,
    tiny_settings: WorkerSettings,
    redis: Redis,
    redis_url: str,
) -> None:
    service.note_consuming()
    engine = service._engine
    assert isinstance(engine, EngineThread)
    engine.submit(model.maker.sequences("job", GenerationJob(prompt="a tale"), now_ms=0)[0])
    wait_until(lambda: engine.stats.has_work, "the engine has work")
    assert service.standing.status().state == "ready"
    engine._moved_s -= STALL_SHOWN_S  # as if it had stood still for so long
    assert service.standing.status().state == "stalled"
    assert not engine.is_stalled(tiny_settings.stall_s), "its leases are renewed"
    with Client(redis_url) as client:
        wait_until(lambda: [one.state for one in client.workers()] == ["stalled"], "everybody sees it")
        gate.set()
        wait_until(lambda: [one.state for one in client.workers()] == ["ready"], "it comes back")
