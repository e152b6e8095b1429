"""Kernels are checked at start: what computes wrong, or not at all, is not taken, and a note says so."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType

from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES
from llama_herd.model.kernels.gpu.load import complaint_of
from llama_herd.model.kernels.trials import Needs

NEEDS = Needs(
    dtype=torch.bfloat16,
    widths=frozenset({(GGMLType.Q4_0, 768), (GGMLType.F32, 64)}),
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    scale=0.2,
    windows=frozenset({0, 40}),
    cap=0.0,
    hidden_size=96,
    ffn_size=80,
    activation="silu",
    qk_norm=False,
    post_norms=False,
)

#: As Gemma 3 has it.
NORMED = replace(NEEDS, activation="gelu_pytorch_tanh", qk_norm=True, post_norms=True)


def checked(device: torch.device, needs: Needs = NEEDS) -> Any:
    from llama_herd.model.kernels.gpu import triton_kernels

    return triton_kernels.checked(needs, device, 132)


@pytest.mark.parametrize(
    "needs", [NEEDS, replace(NORMED, dtype=torch.float32)], ids=["bfloat16", "norms, float32"]
)
def test_all_that_a_model_needs_is_right(device: torch.device, needs: Needs) -> None:
    import triton

    types = frozenset((type, 768) for type in PARTED_TYPES | {GGMLType.F32})
    kernels = checked(device, replace(needs, widths=types))
    assert (
        kernels.note
        == f"triton {triton.__version__} for attention, prompts, rows, RoPE, Q4_0, Q8_0, Q4_K, Q6_K"
    )
    assert kernels.types == PARTED_TYPES
    assert kernels.attention is not None
    assert kernels.elementwise is not None
    assert kernels.rotation is not None


def test_what_computes_wrong_is_not_taken(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_herd.model.kernels.gpu import attention, products, rows, span_attention

    monkeypatch.setitem(products.FORMS, GGMLType.Q4_0, products.Form(2, 32, 16))  # of other columns
    monkeypatch.setattr(attention, "BLOCK_KEYS", 128)  # more than a page
    monkeypatch.setattr(span_attention, "TILES", {256: (16, 128)})
    monkeypatch.setattr(rows.TritonElementwise, "gate", lambda self, x, activation: x[:, : x.shape[1] // 2])
    monkeypatch.setattr(rows, "turning", lambda *_: lambda: None)
    kernels = checked(device, NORMED)
    parts = ("attention", "prompts", "rows", "RoPE", "Q4_0")
    assert kernels.note == "; ".join(("none", *(f"not for {part}: its results are wrong" for part in parts)))
    assert not kernels.types
    assert (kernels.attention, kernels.prefill_attention) == (None, None)
    assert (kernels.elementwise, kernels.rotation) == (None, None)


def test_what_cannot_run_is_not_taken(device: torch.device) -> None:
    """Compiled kernels where there is no driver."""
    if device.type == "cuda":
        pytest.skip("there is a driver")
    script = (
        "import torch; from tests.model.kernels.gpu.test_triton_kernels import checked;"
        "print(checked(torch.device('cpu')).note)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("none; not for attention: RuntimeError: 0 active drivers")


SLOW = "the GPU has compute capability 7.5; it is slow, as bfloat16 and the kernels need 8.0"


@pytest.mark.parametrize(("capability", "is_right"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_an_old_card_is_said_to_be_slow(capability: tuple[int, int], is_right: bool) -> None:
    complaint = complaint_of(capability)
    assert complaint == ("" if is_right else SLOW)
