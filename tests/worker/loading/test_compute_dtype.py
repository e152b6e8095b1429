"""The type of the arithmetic: bfloat16 where the device or kernels are fast in it, but for equal bits."""

from pathlib import Path

import pytest

from llama_herd.model.kernels import instruction_set
from llama_herd.model.kernels.block_types import TILE_ROWS, TILED_TYPES
from llama_herd.model.kernels.unloaded import UnloadedKernels, no_kernels
from llama_herd.worker.loading import memory_plan
from llama_herd.worker.loading.memory_plan import Dtype, compute_dtype
from llama_herd.worker.loading.servable_model import ServableModel
from llama_herd.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("device", "is_native", "settings", "dtype"),
    [
        ("cpu", True, {"dtype": "auto"}, "bfloat16"),
        ("cpu", False, {"dtype": "auto"}, "float32"),
        ("cpu", True, {"dtype": "auto", "deterministic": True}, "float32"),
        ("cpu", True, {"dtype": "float32"}, "float32"),
        ("cpu", False, {"dtype": "bfloat16"}, "bfloat16"),
        ("cuda:0", False, {"dtype": "auto"}, "bfloat16"),
        ("cuda:0", False, {"dtype": "float32"}, "float32"),
    ],
)
def test_auto_is_the_fast_one(
    monkeypatch: pytest.MonkeyPatch, device: str, is_native: bool, settings: dict[str, object], dtype: Dtype
) -> None:
    monkeypatch.setattr(memory_plan, "multiplies_bfloat16", lambda: is_native)
    assert compute_dtype(WorkerSettings.read(**settings), device) == dtype


@pytest.mark.parametrize(("deterministic", "dtype"), [(False, "bfloat16"), (True, "float32")])
def test_native_kernels_make_bfloat16_fast_on_any_processor(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool, dtype: Dtype
) -> None:
    monkeypatch.setattr(memory_plan, "multiplies_bfloat16", lambda: False)
    settings = WorkerSettings.read(dtype="auto", deterministic=deterministic)
    kernels = UnloadedKernels("avx2", TILED_TYPES, TILE_ROWS, has_numbers=True)
    assert compute_dtype(settings, "cpu", kernels) == dtype
    assert compute_dtype(settings, "cpu", no_kernels("not built")) == "float32"


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("weights", ["auto", "quantized", "dense"])
def test_a_model_is_planned_in_the_type_that_it_is_loaded_in(
    monkeypatch: pytest.MonkeyPatch, kernels_folder: Path, weights: str, is_native: bool
) -> None:
    monkeypatch.setattr(memory_plan, "multiplies_bfloat16", lambda: is_native)
    settings = WorkerSettings.read(dtype="auto", weights=weights, kernels_dir=str(kernels_folder))
    found = set()
    for is_only_planned in (True, False):
        with ServableModel.open(settings, "cpu", is_only_planned=is_only_planned) as model:
            found.add(model.plan().dtype)
    assert found == {"bfloat16" if is_native or weights != "dense" else "float32"}


@pytest.mark.parametrize(
    ("flags", "is_native"),
    [({"amx_bf16"}, True), ({"avx512_bf16", "avx2"}, True), ({"avx2", "amx_int8"}, False), (set(), False)],
)
def test_the_processor_is_asked(monkeypatch: pytest.MonkeyPatch, flags: set[str], is_native: bool) -> None:
    monkeypatch.setattr(instruction_set, "_processor_flags", lambda: frozenset(flags))
    assert instruction_set.multiplies_bfloat16() is is_native
