"""A tiny random Llama, loaded; a service around it; and a worker of it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.worker import process
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.startup import start_service
from tests.clients.client_process import new_key
from tests.local.processes import WorkerProcess
from tests.tiny import write_tiny_gguf

if TYPE_CHECKING:
    from openai import OpenAI


@pytest.fixture(scope="session")
def endless_settings(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: WorkerSettings
) -> WorkerSettings:
    """Of a worker whose jobs run until somebody ends them."""
    path = write_tiny_gguf(tmp_path_factory.mktemp("model") / "endless.gguf", eos=False, context_length=8192)
    return tiny_settings.model_copy(update={"model": path, "kv_cache_tokens": 8192})


@pytest.fixture
def model(tiny_settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(tiny_settings, "cpu")


@pytest.fixture
def service(
    redis_url: str, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    """All of a worker but Celery."""
    monkeypatch.setattr(process, "device", lambda: "cpu")
    service = start_service(
        tiny_settings.model_copy(update={"redis_url": redis_url}), "worker@test", WorkerHealth()
    )
    yield service
    service.drain(0.0, lambda: None)


@pytest.fixture(scope="module", params=["", "default,acme"], ids=["one tenant", "tenants"])
def worker_of_m(
    server: EmbeddedRedis,
    tiny_settings: WorkerSettings,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[WorkerProcess]:
    """A worker of the model m, of one tenant and of two: results and links go other ways in these."""
    log = tmp_path_factory.mktemp("log") / "worker.log"
    options = {"model_name": "m", "slots": 4, "tenants": request.param}
    with WorkerProcess(server.url, tiny_settings.model, "m", log, **options) as worker:
        yield worker


@pytest.fixture(scope="module")
def key(server: EmbeddedRedis) -> str:
    """OpenAI's clients always show one. A right one is of its holder, also at an open gateway."""
    return new_key(server.url)


@pytest.fixture(scope="module")
def openai(url: str, key: str) -> Iterator["OpenAI"]:
    """A client of the gateway at the module's `url`."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        yield client
