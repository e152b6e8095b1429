"""A tiny random Llama, loaded once; and a Redis for the tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_herd.worker.embedded_redis import EmbeddedRedis
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_settings(tmp_path_factory: pytest.TempPathFactory) -> WorkerSettings:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path)
    return WorkerSettings(model=path, slots=4, kv_cache_tokens=1024, prefill_tokens=48, threads=1)


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
def tiny_path(tiny_settings: WorkerSettings) -> Path:
    return tiny_settings.model


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server
