"""The tiny model with room for more jobs at once, each test's own: what one has computed no other finds."""

import pytest

from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings


@pytest.fixture
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    return tiny_settings.model_copy(update={"slots": 6, "kv_cache_tokens": 4096})


@pytest.fixture
def wide(settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(settings, "cpu")
