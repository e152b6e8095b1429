"""A tiny random Llama, loaded once; and an engine around it that collects what it says."""

from pathlib import Path

import pytest

from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_settings(tmp_path_factory: pytest.TempPathFactory) -> WorkerSettings:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path)
    return WorkerSettings(model=path, slots=4, kv_cache_tokens=1024, prefill_tokens=48, threads=1)


@pytest.fixture
def model(tiny_settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(tiny_settings, "cpu")


@pytest.fixture
def tiny_path(tiny_settings: WorkerSettings) -> Path:
    return tiny_settings.model
