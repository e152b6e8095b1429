"""What lies more than 4 GiB from the start of a matrix, a cache or a batch is found where it is."""

from collections.abc import Iterator

import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.kernels.native import Kernels
from llama_herd.model.kernels.tiles import blocks_of, random_tiles
from llama_herd.model.pages import PAGE_TOKENS
from tests.model.kernels.repeated import repeated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

FAR = 2**32 + 2**20


@pytest.fixture(scope="module")
def kernels(set_kernels: Kernels) -> Kernels:
    return set_kernels.with_threads(2)


def count_of(piece: Tensor) -> int:
    return -(-FAR // piece.nbytes)


def test_rows_of_a_large_matrix(kernels: Kernels) -> None:
    num_rows, columns = 1_024, 4_096
    tiles = random_tiles(num_rows, columns, GGMLType.Q8_0)
    x = torch.randn(1, columns)
    with repeated(tiles, count_of(tiles)) as all_tiles:
        for kernel in kernels.kernels:
            one = kernels.multiply(x, tiles, GGMLType.Q8_0, num_rows, kernel)
            y = kernels.multiply(x, all_tiles.flatten(0, 1), GGMLType.Q8_0, num_rows * len(all_tiles), kernel)
            assert y.view(len(all_tiles), num_rows).equal(one.expand(len(all_tiles), num_rows))


def test_blocks_of_a_large_matrix(kernels: Kernels) -> None:
    num_rows, columns = 1_024, 4_096
    tiles = random_tiles(num_rows, columns, GGMLType.Q8_0)
    blocks = blocks_of(tiles, torch.arange(num_rows), GGMLType.Q8_0)
    with (
        repeated(blocks, count_of(blocks)) as all_blocks,
        repeated(torch.zeros_like(tiles), count_of(blocks)) as all_tiles,
    ):
        kernels.lay_out(all_blocks.flatten(0, 1), all_tiles.flatten(0, 1), GGMLType.Q8_0)
        assert all_tiles[-1].equal(tiles)


def test_tokens_of_a_large_batch(kernels: Kernels) -> None:
    rows, (num_tokens, columns) = kernels.elementwise, (64, 8_192)
    assert rows is not None
    x, weight = torch.randn(num_tokens, columns).bfloat16(), torch.randn(columns)
    normed, gated = rows.norm(x, weight, 1e-5), rows.gate(x, "silu")
    with (
        repeated(x, count_of(x)) as batch,
        repeated(x, count_of(x)) as out,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(torch, "empty_like", lambda _: out.flatten(0, 1))
        assert rows.norm(batch.flatten(0, 1), weight, 1e-5)[-num_tokens:].equal(normed)
        patch.setattr(Tensor, "new_empty", lambda _, *size: out.view(-1, columns // 2)[: size[0]])
        assert rows.gate(batch.flatten(0, 1), "silu")[-num_tokens:].equal(gated)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def far_cache(request: pytest.FixtureRequest) -> Iterator[Tensor]:
    """Keys and values (2, K, pages, PAGE_TOKENS, D), of which each head has more than 4 GiB."""
    pages = torch.zeros(64, PAGE_TOKENS, 128, dtype=request.param)
    count = count_of(pages)
    with repeated(pages, 2 * 2 * count) as cache:
        yield cache.view(2, 2, count * 64, PAGE_TOKENS, 128)


def test_cells_of_a_large_cache(kernels: Kernels, far_cache: Tensor) -> None:
    rotation, num_cells = kernels.rotation, far_cache.shape[2] * PAGE_TOKENS
    assert rotation is not None
    qkv, (cos, sin) = torch.randn(1, 6, 128).to(far_cache.dtype), torch.randn(2, 1, 1, 128)
    rotation(qkv, cos, sin, far_cache, torch.tensor([num_cells - 1]))
    assert far_cache[1, 1, -1, -1].equal(qkv[0, 5])  # the last one that is written, to memory that all share


def test_pages_of_a_large_cache(kernels: Kernels, far_cache: Tensor) -> None:
    """Pages at the end of the cache are pages at its start."""
    attention, prefill, num_pages = kernels.attention, kernels.prefill_attention, far_cache.shape[2]
    assert attention is not None
    far_cache[0, 0, :64].normal_()
    q = torch.randn(9, 4, 128).to(far_cache.dtype)
    none = torch.tensor([0])
    outputs = []
    for pages in (torch.arange(3, 6), torch.arange(num_pages - 61, num_pages - 58)):
        out = torch.zeros_like(q)
        attention(q, far_cache, Seen(none, torch.tensor([130]), none, pages), out, Scoring(0.1))
        if prefill is not None and q.dtype is torch.bfloat16:
            spans = SeenSpans(Seen(none + 1, torch.tensor([130]), none, pages), torch.tensor([8]), 8)
            prefill(q, far_cache, spans, out, Scoring(0.1))
        outputs.append(out)
    assert outputs[0].any()
    assert outputs[0].equal(outputs[1])


def test_rows_of_many_logits(kernels: Kernels) -> None:
    draw = kernels.draw
    assert draw is not None
    num_rows, num_tokens = 5, 2**28
    piece = torch.zeros(2**20)
    with repeated(piece, num_rows * num_tokens // len(piece)) as logits:
        rows = logits.view(num_rows, num_tokens)
        rows[-1, -1] = 100.0
        states = torch.zeros(num_rows, dtype=torch.int32)
        one, largest = torch.ones(num_rows), torch.full((num_rows,), 100.0)
        found = draw.candidates(rows, one, states, largest, torch.full((num_rows,), -torch.inf))
        assert found is not None
        ids, counts = found
        assert counts.any(dim=1).all()
        assert ((ids + 1) % len(piece) == 0)[counts].all()
