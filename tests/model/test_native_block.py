"""A layer in one native call says to the bit what its parts say one by one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.scoring import Scoring
from llama_herd.model.llama2 import Llama
from llama_herd.model.native_block import MAX_TOKENS, NativeBlock
from llama_herd.model.tiling import SHORT_TOKENS
from llama_herd.model.weights.form import WeightForm
from tests.model.forwards import random_ids, reserved

pytestmark = pytest.mark.long

NUM_ROWS = MAX_TOKENS + 1


@pytest.fixture(scope="module")
def kernels(set_kernels: Kernels) -> Kernels:
    return set_kernels.with_threads(2)


def load(path: Path, kernels: Kernels, dtype: torch.dtype) -> Llama:
    with GGUFModel.open(path) as file:
        return Llama.load(file, dtype=dtype, form=WeightForm.FASTEST.with_kernels(kernels))


def in_parts(llama: Llama) -> Llama:
    """The same model, each layer's parts by themselves."""
    return replace(llama, blocks=tuple(replace(block, native=None) for block in llama.blocks))


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
    """The tokens of each call of a whole layer."""
    calls: list[int] = []
    call = NativeBlock.__call__

    def noted(block: NativeBlock, x: Tensor, *others: Any) -> Tensor:
        calls.append(len(x))
        return call(block, x, *others)

    monkeypatch.setattr(NativeBlock, "__call__", noted)
    return calls


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("types", ["Q4_0", "Q4_K Q6_K Q8_0"])
def test_it_says_what_its_parts_say(
    kernels: Kernels, wide_file: Callable[..., Path], num_calls: list[int], types: str, dtype: torch.dtype
) -> None:
    llama = load(wide_file(types), kernels, dtype)
    kinds = [len(block.attention.qkv.segments) for block in llama.blocks]
    assert (max(kinds) > 1) == (" " in types)
    for num_rows, num_tokens in ((1, 1), (5, 1), (20, 1), (3, SHORT_TOKENS)):
        num_calls.clear()
        found = steps(llama, dtype, num_rows, num_tokens)
        assert num_calls[-1] == num_rows * num_tokens
        parts = steps(in_parts(llama), dtype, num_rows, num_tokens)
        for whole, one_by_one in zip(found, parts, strict=True):
            assert whole.equal(one_by_one)


def test_a_prompt_and_many_rows_are_computed_part_by_part(
    kernels: Kernels, wide_file: Callable[..., Path], num_calls: list[int]
) -> None:
    llama = load(wide_file("Q4_0"), kernels, torch.float32)
    cache = Cache(llama.config, num_pages=NUM_ROWS)
    pages = [reserved(cache, str(row), 10) for row in range(NUM_ROWS)]
    llama.forward(Batch.from_chunks([Chunk(held, 0, [7], 1) for held in pages]), cache)
    llama.forward(Batch.from_chunks([Chunk(pages[0], 1, [7] * (SHORT_TOKENS + 1), 1)]), cache)
    assert num_calls == []


def test_windows_scales_and_caps_go_with_it(kernels: Kernels, wide_file: Callable[..., Path]) -> None:
    llama = load(wide_file("Q4_0"), kernels, torch.float32)
    scoring, blocks = Scoring(scale=0.3, window=24, cap=3.0), []
    for block in llama.blocks:
        assert block.native is not None
        native = replace(block.native, scoring=scoring)
        blocks.append(replace(block, attention=replace(block.attention, scoring=scoring), native=native))
    changed = replace(llama, config=replace(llama.config, windows=(24, 24)), blocks=tuple(blocks))
    found, plain = steps(changed, torch.float32, 3), steps(llama, torch.float32, 3)
    assert not found[0].equal(plain[0])
    for whole, one_by_one in zip(found, steps(in_parts(changed), torch.float32, 3), strict=True):
        assert whole.equal(one_by_one)


@pytest.mark.parametrize(
    "family", [{"post_norms": True}, {"qk_norm": True}, {"activation": "gelu_pytorch_tanh"}], ids=str
)
def test_a_layer_of_another_kind_has_no_such_call(
    kernels: Kernels, wide_file: Callable[..., Path], family: dict[str, Any]
) -> None:
    """What the call leaves out would be wrong in silence."""
    llama = load(wide_file("Q4_0"), kernels, torch.float32)
    config, block = llama.config, llama.blocks[0]
    norms = (block.attention_norm.weight, block.mlp_norm.weight)
    linears = (block.attention.qkv, block.attention.output, block.mlp.gate_up, block.mlp.down)
    assert NativeBlock.if_plain(config, 0, norms, linears, Scoring()) is not None
    other = replace(config, family=replace(config.family, **family))
    assert NativeBlock.if_plain(other, 0, norms, linears, Scoring()) is None
    scaled = replace(config, residual_scale=0.5)
    assert NativeBlock.if_plain(scaled, 0, norms, linears, Scoring()) is None
    biased = (replace(linears[0], bias=torch.zeros(1)), *linears[1:])
    assert NativeBlock.if_plain(config, 0, norms, biased, Scoring()) is None
