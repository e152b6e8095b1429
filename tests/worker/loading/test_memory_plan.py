"""What a worker is going to allocate, known before it does."""

from pathlib import Path

import pytest
from torch import Tensor

from llama_herd.errors import SettingsError
from llama_herd.model.files.model_file import open_model
from llama_herd.model.linear import DenseSegment, Linear
from llama_herd.model.llama2 import Llama
from llama_herd.worker.loading import memory_plan
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.memory_plan import MemoryPlan
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf


def plan(settings: WorkerSettings) -> MemoryPlan:
    with open_model(settings.model) as file:
        return MemoryPlan.of(settings, file, "cpu")


def weights(llama: Llama) -> dict[int, Tensor]:
    """Every tensor of a model, once."""
    found = [llama.embedding, llama.norm.weight, *_matrices(llama.output)]
    for block in llama.blocks:
        found += [block.attention_norm.weight, block.mlp_norm.weight]
        for linear in (*vars(block.attention).values(), *vars(block.mlp).values()):
            found += _matrices(linear)
    return {tensor.data_ptr(): tensor for tensor in found}


def _matrices(linear: object) -> list[Tensor]:
    segments = linear.segments if isinstance(linear, Linear) else ()
    return [segment.matrix for segment in segments if isinstance(segment, DenseSegment)]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_plan_is_what_is_allocated(tmp_path: Path, tied: bool, dtype: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tied=tied)
    settings = WorkerSettings.read(model=path, slots=3, dtype=dtype, threads=1)
    planned, model = plan(settings), LoadedModel.load(settings, "cpu")
    assert planned.weight_bytes == sum(tensor.nbytes for tensor in weights(model.llama).values())
    assert planned.kv_cache_bytes == model.cache.num_bytes
    assert planned.kv_cache_tokens == 3 * 512
    assert planned.max_length == model.max_length == 512


def test_a_cache_that_does_not_fit_is_refused_with_both_numbers(tiny_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"HERD_KV_CACHE_TOKENS=\d+ takes [\d,]+ bytes, but .* free on"):
        plan(WorkerSettings.read(model=tiny_path, kv_cache_tokens=10**12))


def test_a_context_longer_than_the_models_is_refused_with_both_numbers(tiny_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"HERD_CONTEXT_TOKENS=513, but .* was made for 512"):
        plan(WorkerSettings.read(model=tiny_path, context_tokens=513))


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = plan(tiny_settings).weight_bytes
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: num_bytes - 1)
    monkeypatch.delattr(Llama, "load")
    settings = tiny_settings.model_copy(update={"kv_cache_tokens": 0})
    with pytest.raises(
        SettingsError, match=rf"tiny.gguf takes [\d,]+ bytes .* cpu has {num_bytes - 1:,} free"
    ):
        LoadedModel.load(settings, "cpu")
