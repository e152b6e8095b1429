"""The type of the arithmetic: bfloat16 where the device multiplies it natively, but for equal bits."""

import pytest
import torch

from llama_herd.worker.loading import memory_plan
from llama_herd.worker.loading.memory_plan import compute_dtype
from llama_herd.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("device", "is_native", "settings", "dtype"),
    [
        ("cpu", True, {"dtype": "auto"}, torch.bfloat16),
        ("cpu", False, {"dtype": "auto"}, torch.float32),
        ("cpu", True, {"dtype": "auto", "deterministic": True}, torch.float32),
        ("cpu", True, {"dtype": "float32"}, torch.float32),
        ("cpu", False, {"dtype": "bfloat16"}, torch.bfloat16),
        ("cuda:0", False, {"dtype": "auto"}, torch.bfloat16),
        ("cuda:0", False, {"dtype": "float32"}, torch.float32),
    ],
)
def test_auto_is_the_fast_one(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    is_native: bool,
    settings: dict[str, object],
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(memory_plan, "multiplies_bfloat16", lambda: is_native)
    assert compute_dtype(WorkerSettings.read(**settings), device) is dtype


@pytest.mark.parametrize(
    ("processor", "is_native"),
    [
        ({"amx_bf16": True}, True),
        ({"avx512_bf16": True}, True),
        ({"avx2": True, "amx_bf16": False}, False),
        ({}, False),
    ],
)
def test_the_processor_is_asked(
    monkeypatch: pytest.MonkeyPatch, processor: dict[str, bool], is_native: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    assert memory_plan.multiplies_bfloat16.__wrapped__() is is_native
