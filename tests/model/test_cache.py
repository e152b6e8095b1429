"""The cache keeps what is written, turns what RoPE turns, and shows each token only its past."""

import random

import psutil
import pytest
import torch
from torch import Tensor

from benchmarks.shapes import LLAMA_2_7B
from llama_herd.model.attend import attend
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.config import LlamaConfig
from llama_herd.model.llama2 import rotate
from llama_herd.model.pages import PAGE_TOKENS, Pages
from llama_herd.model.sizes import BFLOAT16_BYTES, FLOAT32_BYTES, kv_bytes_per_token, table_bytes
from llama_herd.model.tiling import SPAN_TOKENS
from tests.closeness import assert_close
from tests.tiny import tiny_config


def filled_cache(
    chunks: list[Chunk], config: LlamaConfig, *, consecutive: bool, dtype: torch.dtype = torch.float32
) -> Cache:
    """A cache full of NaN but for the sequences that the chunks end."""
    cache = Cache(config, num_pages=32, dtype=dtype)
    cache.pages = Pages(32, consecutive=consecutive)
    cache.storage.fill_(torch.nan)
    for seed, chunk in enumerate(chunks):
        whole = Batch.from_chunks([Chunk(chunk.pages, 0, [0] * chunk.stop, False)])
        generator = torch.Generator().manual_seed(seed)
        shape = (2, chunk.stop, config.num_kv_heads, config.head_dim)
        keys, values = torch.randn(shape, generator=generator).to(dtype)
        cache.write(0, keys, values, whole)
    return cache


def written(cache: Cache, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Keys and values of a sequence (S, K, D), picked cell by cell."""
    cells = [chunk.cell(position) for position in range(chunk.stop)]
    keys, values = cache.storage[:, 0].flatten(2, 3)[:, :, cells].transpose(1, 2)
    return keys, values


def plain_attention(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """softmax(q k / sqrt(D)) v, one token and head at a time: (t, H, D)."""
    num_tokens, num_heads, head_dim = q.shape
    group = num_heads // keys.shape[1]
    out = torch.empty_like(q)
    for row in range(num_tokens):
        for head in range(num_heads):
            seen = start + row + 1
            scores = keys[:seen, head // group] @ q[row, head] / head_dim**0.5
            out[row, head] = scores.softmax(dim=0) @ values[:seen, head // group]
    return out


def test_storage_is_allocated_once_in_pages() -> None:
    config = tiny_config()
    cache = Cache(config, num_pages=3, dtype=torch.bfloat16)
    assert cache.storage.shape == (2, config.num_layers, config.num_kv_heads, 3, PAGE_TOKENS, config.head_dim)
    assert cache.storage.nbytes == 3 * PAGE_TOKENS * kv_bytes_per_token(config, BFLOAT16_BYTES)


def test_pages_take_no_memory_before_they_are_written() -> None:
    config = tiny_config()
    process = psutil.Process()
    before = process.memory_info().rss
    cache = Cache(config, num_pages=(1 << 30) // (PAGE_TOKENS * kv_bytes_per_token(config, FLOAT32_BYTES)))
    assert cache.storage.nbytes == 1 << 30
    assert process.memory_info().rss - before < 1 << 27


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("max_length", [None, 100])
def test_tables_are_made_for_the_longest_sequence_and_for_what_the_device_reads(
    device: str, max_length: int | None
) -> None:
    config = tiny_config()
    cache = Cache(config, num_pages=32, device=device, max_length=max_length)
    tables = [*cache._ropes, *cache._masks.values(), cache._key_positions]
    num_bytes = sum(table.nbytes for table in tables)
    consecutive = device == "cpu"
    assert num_bytes == table_bytes(config, max_length or 512, consecutive=consecutive)
    assert (num_bytes > SPAN_TOKENS * SPAN_TOKENS) is consecutive


def test_a_token_of_llama2_7b_takes_half_a_mebibyte() -> None:
    assert kv_bytes_per_token(LLAMA_2_7B, BFLOAT16_BYTES) == 524_288


def test_what_is_written_is_read_and_nothing_else_changes() -> None:
    config = tiny_config()
    cache = Cache(config, num_pages=4)
    cache.storage.zero_()
    pages = cache.pages.reserve("a", 100)
    assert pages is not None
    batch = Batch.from_chunks([Chunk(pages, 0, [0] * 100, False)])
    keys, values = torch.randn(2, 100, config.num_kv_heads, config.head_dim)
    cache.write(1, keys, values, batch)
    (span,) = batch.spans
    read = cache.view(1).narrow(3, span.first_cell, 100)[:, 0]
    assert read.equal(torch.stack((keys, values)).transpose(1, 2))
    assert cache.storage.count_nonzero() == keys.numel() + values.numel()


def test_gathered_pages_come_in_the_order_of_the_table() -> None:
    cache = Cache(tiny_config(), num_pages=4)
    cache.storage.copy_(torch.arange(4.0).view(4, 1, 1).expand(4, PAGE_TOKENS, 16))
    keys, _ = cache.gather(0, torch.tensor([[2, 0], [3, 1]]))
    assert keys.shape == (2, 2, 2 * PAGE_TOKENS, 16)
    assert keys[:, 0, ::PAGE_TOKENS, 0].tolist() == [[2, 0], [3, 1]]


def test_masks_equal_a_plain_loop() -> None:
    cache = Cache(tiny_config(), num_pages=8)
    chance = random.Random(0)
    for _ in range(50):
        num_tokens = chance.randint(1, 40)
        past = chance.randint(0, 512 - num_tokens)
        loop = [[key <= past + query for key in range(past + num_tokens)] for query in range(num_tokens)]
        assert cache.mask(num_tokens, past).tolist() == loop


@pytest.mark.parametrize("window", [1, 2, 24, 600])
def test_masks_of_a_window_equal_a_plain_loop(window: int) -> None:
    cache = Cache(tiny_config(windows=(0, window)), num_pages=8)
    chance = random.Random(0)
    for _ in range(50):
        num_tokens = chance.randint(1, 40)
        past = chance.randint(0, min(512 - num_tokens, window - 1))
        queries = range(past, past + num_tokens)
        loop = [[query - window < key <= query for key in range(past + num_tokens)] for query in queries]
        assert cache.mask(num_tokens, past, window).tolist() == loop
        positions = torch.tensor([list(queries)])
        padded = cache.padding_mask(positions, past + num_tokens, window)
        assert padded[0, 0].tolist() == loop


def test_tables_of_windows_and_of_a_second_rope_are_counted() -> None:
    config = tiny_config(windows=(24, 0), local_rope_base=100.0)
    cache = Cache(config, num_pages=8)
    tables = [*cache._ropes, *cache._masks.values(), cache._key_positions]
    assert sum(table.nbytes for table in tables) == table_bytes(config, 512, consecutive=True)


def test_a_mask_is_a_view_of_one_table() -> None:
    cache = Cache(tiny_config(), num_pages=8)
    assert cache.mask(7, 5).data_ptr() == cache.mask(7, 5).data_ptr()
    masks = [cache.mask(1, 0), cache.mask(SPAN_TOKENS, 0), cache.mask(3, 509)]
    assert len({mask.untyped_storage().data_ptr() for mask in masks}) == 1


def test_padding_masks_equal_masks() -> None:
    cache = Cache(tiny_config(), num_pages=8)
    padded = cache.padding_mask(torch.tensor([[4, 5, 6], [0, 1, 2]]), num_keys=64)
    assert padded.shape == (2, 1, 3, 64)
    assert padded[0, 0, :, :7].equal(cache.mask(3, 4))
    assert padded[1, 0, :, :3].equal(cache.mask(3, 0))
    assert not padded[0, :, :, 7:].any()
    assert not padded[1, :, :, 3:].any()


def test_rope_multiplies_pairs_as_complex_numbers() -> None:
    config = tiny_config(rope_base=500.0)
    positions = torch.tensor([0, 1, 17, 511])
    x = torch.randn(4, config.num_heads, config.head_dim)
    half = config.head_dim // 2
    speeds = 500.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), positions[:, None] * speeds)[:, None]
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    rotated = rotate(x, Cache(config, num_pages=8).rope(positions))
    assert_close(rotated.double(), expected, atol=1e-4, rtol=0)


def test_rope_tables_stay_float32_under_bfloat16() -> None:
    rope = Cache(tiny_config(), num_pages=8, dtype=torch.bfloat16).rope(torch.tensor([3]))
    assert rope.cos.dtype == rope.sin.dtype == torch.float32


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_attention_equals_the_plain_formula(consecutive: bool, num_kv_heads: int) -> None:
    """A ragged batch in a cache of NaN: prefill from 0, a later chunk, and two that decode."""
    chunks = [
        Chunk((4, 5), 0, [0] * 70, False),
        Chunk((1, 2, 3), 100, [0] * 33, False),
        Chunk((8, 9), 64, [0], True),
        Chunk((7,), 3, [0], True),
    ]
    config = tiny_config(num_kv_heads=num_kv_heads)
    cache = filled_cache(chunks, config, consecutive=consecutive)
    batch = Batch.from_chunks(chunks)
    q = torch.randn(len(batch.ids), config.num_heads, config.head_dim)
    expected = [
        plain_attention(q[span.rows.start : span.rows.stop], *written(cache, chunk), chunk.start)
        for chunk, span in zip(chunks, batch.spans, strict=True)
    ]
    assert_close(attend(q, cache, 0, batch), torch.cat(expected), atol=1e-5, rtol=0)


def test_scattered_pages_attend_as_consecutive_ones_do() -> None:
    """The same sequences under two page tables, one long enough to attend in two spans."""
    config = tiny_config(context_length=1024)
    ordered = [Chunk(tuple(range(10)), 20, [0] * 600, True), Chunk((10, 11), 80, [0], True)]
    scattered = [Chunk((*range(9, 20), 3), 20, [0] * 600, True), Chunk((31, 5), 80, [0], True)]
    q = torch.randn(601, config.num_heads, config.head_dim)
    runs = attend(q, filled_cache(ordered, config, consecutive=True), 0, Batch.from_chunks(ordered))
    pages = attend(q, filled_cache(scattered, config, consecutive=False), 0, Batch.from_chunks(scattered))
    assert_close(pages, runs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("consecutive", [True, False])
def test_float16_extremes_give_no_nan(consecutive: bool) -> None:
    config = tiny_config()
    cache = Cache(config, num_pages=8, dtype=torch.float16)
    cache.pages = Pages(8, consecutive=consecutive)
    batch = Batch.from_chunks([Chunk((0,), 0, [0] * 20, False), Chunk((3,), 0, [0], False)])
    signs = torch.randint(0, 2, (3, 21, config.num_heads, config.head_dim)) * 2 - 1
    q, keys, values = (signs * 6e4).to(torch.float16)
    cache.write(0, keys[:, : config.num_kv_heads], values[:, : config.num_kv_heads], batch)
    assert attend(q, cache, 0, batch).isfinite().all()
