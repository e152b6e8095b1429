"""The type of the arithmetic: bfloat16 where the device multiplies it natively, but for equal bits."""

import pytest

from llama_herd.model.kernels import instruction_set
from llama_herd.worker.loading import memory_plan
from llama_herd.worker.loading.memory_plan import Dtype, compute_dtype
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


@pytest.mark.parametrize(
    ("flags", "is_native"),
    [({"amx_bf16"}, True), ({"avx512_bf16", "avx2"}, True), ({"avx2", "amx_int8"}, False), (set(), False)],
)
def test_the_processor_is_asked(monkeypatch: pytest.MonkeyPatch, flags: set[str], is_native: bool) -> None:
    monkeypatch.setattr(instruction_set, "_processor_flags", lambda: frozenset(flags))
    assert instruction_set.multiplies_bfloat16() is is_native
