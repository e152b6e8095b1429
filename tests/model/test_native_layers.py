"""Layers in native calls say to the bit what their parts say one by one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.native_layers import FEW_TOKENS, NativeLayers
from llama_herd.model.shape.families import FAMILIES
from llama_herd.model.tiling import SHORT_TOKENS
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import Linear, NativeSegment
from tests.model.forwards import random_ids, reserved

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def kernels(set_kernels: Kernels) -> Kernels:
    return set_kernels.with_threads(2)


def load(path: Path, kernels: Kernels, dtype: torch.dtype) -> Llama:
    with GGUFModel.open(path) as file:
        return Llama.load(file, dtype=dtype, form=WeightForm.FASTEST.with_kernels(kernels))


def in_parts(llama: Llama) -> Llama:
    """The same model, each layer's parts by themselves."""
    return replace(llama, native=None)


def steps(llama: Llama, dtype: torch.dtype, num_rows: int, num_tokens: int = 1) -> list[Tensor]:
    """Logits of two steps of rows of many lengths."""
    cache = Cache(llama.config, num_pages=3 * num_rows, dtype=dtype)
    prompts = [random_ids(1 + 7 * row % 150, row) for row in range(num_rows)]
    pages = [reserved(cache, str(row), 160) for row in range(num_rows)]
    llama.forward(
        Batch.from_chunks([Chunk(held, 0, ids, 1) for held, ids in zip(pages, prompts, strict=True)]), cache
    )
    logits = []
    for step in range(2):
        new = [random_ids(num_tokens, step)] * num_rows
        starts = [len(ids) + step * num_tokens for ids in prompts]
        chunks = [Chunk(*row, 1) for row in zip(pages, starts, new, strict=True)]
        logits.append(llama.forward(Batch.from_chunks(chunks), cache))
    return logits


@pytest.fixture
def num_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each step that went through all layers natively."""
    calls: list[int] = []
    call = NativeLayers.__call__

    def noted(layers: NativeLayers, x: Tensor, *others: Any) -> Tensor:
        calls.append(len(x))
        return call(layers, x, *others)

    monkeypatch.setattr(NativeLayers, "__call__", noted)
    return calls


@pytest.mark.drawn(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("types", ["Q4_0", "Q4_K Q6_K Q8_0"])
def test_it_says_what_its_parts_say(
    kernels: Kernels, wide_file: Callable[..., Path], num_calls: list[int], types: str, dtype: torch.dtype
) -> None:
    llama = load(wide_file(types), kernels, dtype)
    kinds = [len(block.attention.qkv.segments) for block in llama.blocks]
    assert (max(kinds) > 1) == (" " in types)
    for num_rows, num_tokens in ((1, 1), (5, 1), (20, 1), (3, SHORT_TOKENS), (FEW_TOKENS + 1, 1)):
        num_calls.clear()
        found = steps(llama, dtype, num_rows, num_tokens)
        assert num_calls[-1] == num_rows * num_tokens
        parts = steps(in_parts(llama), dtype, num_rows, num_tokens)
        for whole, one_by_one in zip(found, parts, strict=True):
            assert whole.equal(one_by_one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prompts_beside_rows_say_what_their_parts_say(
    kernels: Kernels, wide_file: Callable[..., Path], num_calls: list[int], dtype: torch.dtype
) -> None:
    llama = load(wide_file("Q4_0"), kernels, dtype)
    lengths, found = (100, 1, SHORT_TOKENS + 1, 1), []
    for model in (llama, in_parts(llama)):
        cache = Cache(llama.config, num_pages=40, dtype=dtype)
        pages = [reserved(cache, str(row), 2 * length) for row, length in enumerate(lengths)]
        for start in (0, 1):
            ids = [random_ids(length, row) for row, length in enumerate(lengths)]
            chunks = [
                Chunk(held, start * length, of_row, 1)
                for held, length, of_row in zip(pages, lengths, ids, strict=True)
            ]
            found.append(model.forward(Batch.from_chunks(chunks), cache))
    assert found[0].equal(found[2])
    assert found[1].equal(found[3])
    attends_to_prompts = kernels.prefill_attention is not None and dtype is torch.bfloat16
    assert len(num_calls) == (2 if attends_to_prompts else 0)


@pytest.mark.parametrize("num_tokens", [1, FEW_TOKENS + 1])
def test_few_tokens_go_through_all_layers_at_once(
    kernels: Kernels, wide_file: Callable[..., Path], num_tokens: int
) -> None:
    llama, told = load(wide_file("Q4_0"), kernels, torch.float32), 0

    def note() -> None:
        nonlocal told
        told += 1

    cache = Cache(llama.config, num_pages=num_tokens)
    pages = [reserved(cache, str(row), 1) for row in range(num_tokens)]
    llama.forward(Batch.from_chunks([Chunk(held, 0, [7], 1) for held in pages]), cache, note)
    assert told == (1 if num_tokens == 1 else llama.config.num_layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_windows_scales_and_caps_go_with_it(
    kernels: Kernels, wide_file: Callable[..., Path], dtype: torch.dtype
) -> None:
    llama = load(wide_file("Q4_0"), kernels, dtype)
    windows = (24, 0)
    blocks = [
        replace(
            block,
            attention=replace(block.attention, scoring=Scoring(scale=0.3, window=window, cap=3.0)),
            scale=0.22,
        )
        for block, window in zip(llama.blocks, windows, strict=True)
    ]
    config = replace(llama.config, windows=windows, residual_scale=0.22)
    native = NativeLayers.if_native(config, [block.parts for block in blocks])
    assert native is not None
    changed = replace(llama, config=config, blocks=tuple(blocks), native=native)
    found, plain = steps(changed, dtype, 3), steps(llama, dtype, 3)
    assert not found[0].equal(plain[0])
    for whole, one_by_one in zip(found, steps(in_parts(changed), dtype, 3), strict=True):
        assert whole.equal(one_by_one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_each_family_goes_with_it(
    kernels: Kernels,
    family_file: Callable[[str], Path],
    num_calls: list[int],
    family: str,
    dtype: torch.dtype,
) -> None:
    llama = load(family_file(family), kernels, dtype)
    for num_rows in (1, 5, FEW_TOKENS + 1):
        found = steps(llama, dtype, num_rows)
        assert num_calls[-1] == num_rows
        for whole, one_by_one in zip(found, steps(in_parts(llama), dtype, num_rows), strict=True):
            assert whole.equal(one_by_one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_biases_of_any_matrix_go_with_it(
    kernels: Kernels, wide_file: Callable[..., Path], num_calls: list[int], dtype: torch.dtype
) -> None:
    llama = load(wide_file("Q4_0"), kernels, dtype)

    def biased(linear: Linear) -> Linear:
        bias = torch.randn(sum(one.num_rows for one in linear.segments if isinstance(one, NativeSegment)))
        return replace(linear, bias=bias.to(dtype))

    first, last = llama.blocks
    attention = replace(last.attention, output=biased(last.attention.output))
    mlp = replace(last.mlp, gate_up=biased(last.mlp.gate_up), down=biased(last.mlp.down))
    blocks = first, replace(last, attention=attention, mlp=mlp)
    native = NativeLayers.if_native(llama.config, [block.parts for block in blocks])
    assert native is not None
    changed = replace(llama, blocks=blocks, native=native)
    for num_rows in (1, 5, FEW_TOKENS + 1):
        found = steps(changed, dtype, num_rows)
        assert num_calls[-1] == num_rows
        assert not found[0].equal(steps(llama, dtype, num_rows)[0])
        for whole, one_by_one in zip(found, steps(in_parts(changed), dtype, num_rows), strict=True):
            assert whole.equal(one_by_one)
