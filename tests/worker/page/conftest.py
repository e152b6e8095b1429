"""The page in a real Chromium, at a gateway that is open and at one that wants keys, with two workers."""

from collections.abc import Iterator
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks import Client
from llama_herd.tasks.settings import Settings
from tests.browser import Browser, Tab
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import WorkerProcess
from tests.tiny import write_tiny_gguf
from tests.worker.page.opening import CONTEXT, LONG, Open


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def url(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    endless = write_tiny_gguf(
        folder / "endless.gguf", eos=False, context_length=CONTEXT, sampling={"temp": 0.5}
    )
    options: dict[str, Any] = {"model_name": "endless", "slots": 4, "kv_cache_tokens": 4 * CONTEXT}
    limit = {"HERD_MAX_TOKENS_LIMIT": str(LONG)}
    one = WorkerProcess(server.url, endless, "one", folder / "one.log", env=limit, **options)
    two = WorkerProcess(server.url, BUNDLED_MODEL, "two", folder / "two.log")
    with one, two, GatewayProcess(server.url, folder / "gateway.log", **limit) as gateway:
        yield gateway.url


@pytest.fixture(scope="module")
def closed_url(url: str, server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway on the same herd that wants keys."""
    log, own = tmp_path_factory.mktemp("closed") / "log", {"HERD_GATEWAY_OPEN": "false"}
    with GatewayProcess(server.url, log, HERD_MAX_TOKENS_LIMIT=str(LONG), **own) as gateway:
        yield gateway.url


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Client]:
    with Client(settings=Settings.read(redis_url=server.url, max_tokens_limit=LONG)) as client:
        yield client


@pytest.fixture
def open_page(browser: Browser, url: str, closed_url: str, client: Client) -> Iterator[Open]:
    """Opens the page. In the end nothing was wrong with it, and it has asked nobody but its gateway."""
    tabs: list[Tab] = []

    def opened(link: str = "", **how: Any) -> Tab:
        tabs.append(browser.open(link or url, **how))
        tabs[-1].wait("document.querySelector('.worker, #door[open]')")
        return tabs[-1]

    yield opened
    for tab in tabs:
        assert tab.complaints == []
        assert {asked for asked in tab.urls if not asked.startswith((f"{url}/", f"{closed_url}/"))} <= {
            "about:blank"
        }
        tab.close()
    for job in client.jobs():
        client.cancel(job.job_id)
