"""Where a native kernel attends, rows and models say what the plain path says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_herd.model.attend import attend
from llama_herd.model.attention_inputs import Scoring
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.kernels.attention import Attention, PrefillAttention
from llama_herd.model.kernels.native import Kernels, load_kernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.tiling import SHORT_TOKENS
from llama_herd.model.weights.form import WeightForm
from tests.closeness import assert_close
from tests.model.forwards import random_ids, reserved
from tests.model.test_cache import filled_cache
from tests.tiny import WIDE, tiny_config, write_tiny_gguf


@pytest.fixture(scope="module")
def kernels(kernels_folder: Path) -> Kernels:
    kernels = load_kernels(kernels_folder)
    if kernels.attention is None:
        pytest.skip(kernels.note)
    return kernels


class Counted:
    """A kernel that notes how many rows it was asked for."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.takes = attention.takes
        self.num_rows: list[int] = []

    def __call__(self, q: Any, cached: Any, seen: Any, out: Any, scoring: Scoring) -> None:
        self.num_rows.append(len(seen.rows))
        self.attention(q, cached, seen, out, scoring)


class CountedSpans:
    """A kernel that notes the spans that it was asked for."""

    def __init__(self, attention: PrefillAttention) -> None:
        self.attention = attention
        self.takes = attention.takes
        self.num_tokens: list[list[int]] = []

    def __call__(self, q: Any, cached: Any, spans: Any, out: Any, scoring: Scoring) -> None:
        self.num_tokens.append(spans.num_tokens.tolist())
        self.attention(q, cached, spans, out, scoring)


CHUNKS = (
    Chunk((4, 5), 0, [0] * 70, False),
    Chunk((1, 2, 3), 100, [0] * SHORT_TOKENS, False),
    Chunk((8, 9), 64, [0], True),
    Chunk((10, 11, 12), 100, [0] * (SHORT_TOKENS + 1), False),
    Chunk((7,), 3, [0], True),
)


@pytest.mark.parametrize("scoring", [Scoring(), Scoring(window=24), Scoring(scale=0.3, cap=3.0)], ids=str)
@pytest.mark.parametrize("chunks", [CHUNKS, CHUNKS[:1], CHUNKS[2:3]], ids=["mixed", "long", "short"])
def test_it_takes_the_short_spans_of_a_batch_and_says_the_same(
    kernels: Kernels, chunks: tuple[Chunk, ...], scoring: Scoring
) -> None:
    assert kernels.attention is not None
    config = tiny_config(windows=(0, 24))
    cache = filled_cache(list(chunks), config, consecutive=True)
    batch = Batch.from_chunks(chunks)
    q = torch.randn(len(batch.ids), config.num_heads, config.head_dim)
    counted: Any = Counted(kernels.attention)
    found = attend(q, cache, 0, batch, scoring, counted)
    assert_close(found, attend(q, cache, 0, batch, scoring), atol=1e-5, rtol=0)
    short = [len(chunk.ids) for chunk in chunks if len(chunk.ids) <= SHORT_TOKENS]
    assert counted.num_rows == ([sum(short)] if short else [])


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize("scoring", [Scoring(), Scoring(window=24), Scoring(scale=0.3, cap=3.0)], ids=str)
@pytest.mark.parametrize("chunks", [CHUNKS, CHUNKS[:1], CHUNKS[2:3]], ids=["mixed", "long", "short"])
def test_one_with_tiles_takes_the_long_spans_too(
    kernels: Kernels, chunks: tuple[Chunk, ...], scoring: Scoring, consecutive: bool
) -> None:
    if kernels.prefill_attention is None:
        pytest.skip(kernels.note)
    config = tiny_config(windows=(0, 24))
    cache = filled_cache(list(chunks), config, consecutive=consecutive, dtype=torch.bfloat16)
    batch = Batch.from_chunks(chunks, span_tokens=64)
    q = torch.randn(len(batch.ids), config.num_heads, config.head_dim).bfloat16()
    counted: Any = CountedSpans(kernels.prefill_attention)
    found = attend(q, cache, 0, batch, scoring, kernels.attention, counted)
    assert_close(found, attend(q, cache, 0, batch, scoring), atol=2**-6, rtol=2**-6)
    long = [span.num_tokens for span in batch.spans if span.num_tokens > SHORT_TOKENS]
    assert counted.num_tokens == ([long] if long else [])


def test_what_a_kernel_does_not_take_is_attended_by_torch(kernels: Kernels) -> None:
    config = tiny_config()
    cache = Cache(config, num_pages=8, dtype=torch.float16)
    cache.storage.normal_()
    batch = Batch.from_chunks([Chunk((0,), 20, [0], True)])
    q = torch.randn(1, config.num_heads, config.head_dim).half()
    assert attend(q, cache, 0, batch, native=kernels.attention).equal(attend(q, cache, 0, batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_says_the_same(kernels: Kernels, tmp_path: Path, dtype: torch.dtype) -> None:
    """The same products, and attention by kernels or by torch."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type="Q4_0", **WIDE)
    logits = []
    for form in (kernels, replace(kernels, attention=None, prefill_attention=None)):
        with GGUFModel.open(path) as file:
            llama = Llama.load(file, dtype=dtype, form=WeightForm.FASTEST.with_kernels(form))
        assert (llama.blocks[0].attention.native is None) is (form.attention is None)
        cache = Cache(llama.config, num_pages=16, dtype=dtype)
        prompts = [random_ids(length, length) for length in (3, 70, 200)]
        pages = [reserved(cache, str(row), 256) for row in range(len(prompts))]
        chunks = [Chunk(held, 0, ids, 1) for held, ids in zip(pages, prompts, strict=True)]
        logits.append(llama.forward(Batch.from_chunks(chunks), cache))
        for step in range(3):
            starts = [len(ids) + step for ids in prompts]
            chunks = [Chunk(held, start, [7 + step], 1) for held, start in zip(pages, starts, strict=True)]
            logits.append(llama.forward(Batch.from_chunks(chunks), cache))
    tolerance = 5e-5 if dtype is torch.float32 else 0.1
    for native, plain in zip(logits[:4], logits[4:], strict=True):
        assert_close(native, plain, atol=tolerance, rtol=0)
