"""The tiny model, as it is and with room for more jobs at once.

Weights never change, so they are loaded once a file. The cache is each test's own: what one has computed no
other finds.
"""

from collections.abc import Callable
from functools import cache

import pytest

from llama_herd.worker.engine.sampling import rules
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import Collector, run, with_empty_cache
from tests.worker.overlapping import with_layers
from tests.worker.ways_to_draw import jobs


@pytest.fixture(scope="module")
def loaded(tiny_settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(tiny_settings, "cpu")


@pytest.fixture
def model(loaded: LoadedModel) -> LoadedModel:
    return with_empty_cache(loaded)


@pytest.fixture(scope="module")
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    return tiny_settings.model_copy(update={"slots": 6, "kv_cache_tokens": 4096, "context_tokens": 256})


@pytest.fixture(scope="module")
def loaded_wide(settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(settings, "cpu")


@pytest.fixture(scope="module")
def step_by_step(loaded_wide: LoadedModel, settings: WorkerSettings) -> Callable[..., Collector]:
    """What is said of `jobs` when each step is read before the next one; once, whoever asks for it."""
    together = settings.model_copy(update={"slots": 24, "prefill_tokens": 1000})

    @cache
    def found(*modes: str, seed: int = 0, num_sequences: int = 9, is_shallow: bool = False) -> Collector:
        model = with_empty_cache(loaded_wide)
        if is_shallow:
            model.llama = with_layers(model.llama, 1)
        return run(model, together, jobs(model, *modes, seed=seed, num_sequences=num_sequences))

    return found


@pytest.fixture
def wide(loaded_wide: LoadedModel) -> LoadedModel:
    return with_empty_cache(loaded_wide)


@pytest.fixture
def masks_as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpack masks by what a card does, also on a CPU."""
    monkeypatch.setattr(rules, "unpacked", rules.unpacked_there)
