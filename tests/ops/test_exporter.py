"""The port is taken at the start or refused at the start, and a scraper can do no harm at it."""

import json
import socket
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from llama_herd.errors import SettingsError
from llama_herd.ops.exporter import Exporter, HealthPages
from llama_herd.tasks.protocol.health import Health
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import PATIENCE_S


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield int(one.getsockname()[1])


@pytest.fixture
def port() -> int:
    """One that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def settings(**given: object) -> WorkerSettings:
    return WorkerSettings.model_validate({"redis_url": "redis://127.0.0.1:1", **given})


def test_a_port_that_is_taken_is_named_with_the_fix(taken: int) -> None:
    with pytest.raises(SettingsError, match=rf"HERD_METRICS_PORT={taken}: .*in use.* Fix: another port"):
        Exporter.start(settings(metrics_host="127.0.0.1", metrics_port=taken))


@pytest.mark.long
def test_a_worker_that_starts_again_gets_the_port_of_the_last_one_at_once(port: int) -> None:
    """Though the system still remembers its connections."""
    for _ in range(2):
        exporter = Exporter.start(settings(metrics_host="127.0.0.1", metrics_port=port))
        assert exporter is not None
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as reply:
            reply.read()
        exporter.stop()


def test_no_port_no_server() -> None:
    assert Exporter.start(settings()) is None


@pytest.mark.long
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_while_the_model_loads_there_are_figures_of_the_process(host: str, taken: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        port = int(probe.getsockname()[1])
    exporter = Exporter.start(settings(metrics_host=host, metrics_port=port))
    assert exporter is not None
    at = f"[{host}]" if ":" in host else host
    with urlopen(f"http://{at}:{port}/metrics", timeout=PATIENCE_S) as reply:
        text = reply.read().decode()
    assert "process_resident_memory_bytes" in text
    assert "herd_ledger_up 0.0" in text
    exporter.stop()


def answer(port: int, path: str) -> tuple[int, dict[str, str]]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as reply:
            return reply.status, json.load(reply)
    except HTTPError as refused:
        return refused.code, json.load(refused)


def test_health_is_told_as_a_gateway_tells_it(port: int) -> None:
    pages: HealthPages = {"/health/live": Health.live, "/health/ready": lambda: Health.ready("loading 7%")}
    exporter = Exporter.start(settings(metrics_port=port), pages)
    assert exporter is not None
    try:
        assert answer(port, "/health/live") == (200, {"status": "live"})
        assert answer(port, "/health/ready") == (503, {"status": "not ready", "reason": "loading 7%"})
    finally:
        exporter.stop()


def test_a_process_that_tells_no_health_here_is_never_taken_for_a_healthy_one(port: int) -> None:
    """A gateway tells it at its own port."""
    exporter = Exporter.start(settings(metrics_port=port))
    assert exporter is not None
    try:
        assert answer(port, "/health/ready") == answer(port, "/health/live") == (404, {})
    finally:
        exporter.stop()
