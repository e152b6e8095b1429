"""The page while its worker or its gateway is killed: the text goes on where it was."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from tests.browser import Browser
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import WorkerProcess
from tests.page import ask, is_over, needs_chromium, said
from tests.tiny import write_tiny_gguf

pytestmark = [
    *(pytest.mark.redis, pytest.mark.worker, pytest.mark.fault, pytest.mark.timeout(180)),
    needs_chromium,
]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(stack: ExitStack) -> EmbeddedRedis:
    return stack.enter_context(EmbeddedRedis())


@pytest.fixture
def workers(stack: ExitStack, server: EmbeddedRedis, tmp_path: Path) -> dict[str, WorkerProcess]:
    """Two workers by their names, whose jobs take seconds."""
    path = write_tiny_gguf(tmp_path / "endless.gguf", eos=False, context_length=8192)
    options: dict[str, Any] = {"model_name": "endless", "slots": 4, "kv_cache_tokens": 8192}
    made = [WorkerProcess(server.url, path, name, tmp_path / name, **options) for name in ("one", "two")]
    return {worker.name: stack.enter_context(worker) for worker in made}


def test_a_killed_worker_is_seen_and_costs_no_text(
    stack: ExitStack, server: EmbeddedRedis, workers: dict[str, WorkerProcess], tmp_path: Path
) -> None:
    gateway = stack.enter_context(GatewayProcess(server.url, tmp_path / "gateway.log"))
    tab = stack.enter_context(Browser(tmp_path / "chromium")).open(gateway.url)
    job_id = ask(tab, "Once upon a time", 4000)
    tab.wait(said(100))
    with Client(server.url) as client:
        name = str(client.job(job_id).worker)
        workers[name].kill()
        (other,) = workers.keys() - {name}
        tab.wait(
            f"document.querySelector('.notes')?.textContent.includes('{other} went on for {name} after')"
        )
        tab.wait("document.querySelectorAll('.worker').length === 1")
        tab.wait(is_over, 90)
        assert tab.text(".said") == client.result(job_id).text
    assert tab.complaints == []


def test_a_killed_gateway_is_waited_for(
    stack: ExitStack, server: EmbeddedRedis, workers: dict[str, WorkerProcess], tmp_path: Path
) -> None:
    gateway = stack.enter_context(GatewayProcess(server.url, tmp_path / "one.log"))
    port = str(urlsplit(gateway.url).port)
    tab = stack.enter_context(Browser(tmp_path / "chromium")).open(gateway.url)
    job_id = ask(tab, "Once upon a time", 4000)
    tab.wait(said(100))
    gateway.kill()
    tab.wait("document.querySelector('.turn .state').textContent.includes('connection is lost')")
    tab.wait("!document.querySelector('#lost').hidden")
    stack.enter_context(GatewayProcess(server.url, tmp_path / "two.log", HERD_GATEWAY_PORT=port))
    tab.wait(is_over, 90)
    tab.wait("document.querySelector('#lost').hidden")
    with Client(server.url) as client:
        assert tab.text(".said") == client.result(job_id).text
    assert tab.complaints == []
