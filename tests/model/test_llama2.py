"""The laws of the model: equal to transformers, however its tokens are cut into batches and pages."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

import llama_herd.model
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama, Mlp, RMSNorm
from llama_herd.model.pages import PAGE_TOKENS, Pages
from llama_herd.model.weights.linear import DenseSegment, Linear
from tests.closeness import assert_close
from tests.model.forwards import (
    VOCAB_SIZE,
    greedy,
    logits_after,
    prefill_by,
    random_ids,
    reserved,
    tensors_in,
)
from tests.tiny import load_tiny, oracle, oracle_logits, tiny_config, write_tiny_gguf


@pytest.fixture
def cache(llama: Llama) -> Cache:
    return Cache(llama.config, num_pages=64)


def assert_greedy_as_transformers(
    path: Path, prompts: list[list[int]], num_tokens: int, **shape: Any
) -> None:
    """Each token must be transformers' best after the prompt and the tokens before it."""
    completions = greedy(load_tiny(path), prompts, num_tokens)
    texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
    longest = max(map(len, texts))
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])  # causal: no mask needed
    with torch.inference_mode():
        best = oracle(path, **shape)(padded).logits.argmax(dim=-1).tolist()
    for prompt, completion, row in zip(prompts, completions, best, strict=True):
        assert completion == row[len(prompt) - 1 : len(prompt) - 1 + num_tokens]


# Equal to transformers


@pytest.mark.long
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_greedy_ids_equal_transformers_for_20_prompts_of_64_tokens(tmp_path: Path, num_kv_heads: int) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", num_kv_heads=num_kv_heads)
    prompts = [random_ids(2 * seed + 1, seed) for seed in range(20)]
    assert_greedy_as_transformers(path, prompts, num_tokens=64, num_kv_heads=num_kv_heads)


@pytest.mark.long
@pytest.mark.parametrize(
    "shape",
    [
        {"rms_eps": 0.1},
        {"rope_base": 100.0},
        {"head_dim": 32},
        {"num_heads": 8, "num_kv_heads": 2, "hidden_size": 96, "head_dim": 12},
    ],
    ids=str,
)
def test_the_shape_comes_from_the_file(tmp_path: Path, shape: dict[str, Any]) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **shape)
    ids = random_ids(100)
    ours = logits_after(load_tiny(path), ids)
    assert_close(ours, oracle_logits(path, ids, **shape), atol=1e-4, rtol=0)


@pytest.mark.parametrize("change", [{"rms_eps": 0.1}, {"rope_base": 100.0}], ids=str)
def test_eps_and_rope_base_change_the_logits(llama: Llama, tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **change)
    ids = random_ids(100)
    assert (logits_after(load_tiny(path), ids) - logits_after(llama, ids)).abs().max() > 0.01


def test_the_cache_has_the_positions_that_the_file_states(tmp_path: Path) -> None:
    llama = load_tiny(write_tiny_gguf(tmp_path / "tiny.gguf", context_length=100))
    cache = Cache(llama.config, num_pages=8)
    assert len(cache.rope(torch.tensor([99])).cos) == 1
    with pytest.raises(IndexError):
        cache.rope(torch.tensor([100]))


@pytest.mark.long
def test_a_tied_model_uses_its_embedding_twice(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tied=True)
    llama = load_tiny(path)
    ids = random_ids(40)
    assert llama.output is not None
    assert llama.output.segments == (llama.embedding,)
    assert_close(logits_after(llama, ids), oracle_logits(path, ids), atol=5e-5, rtol=0)


@pytest.mark.long
def test_rows_of_q_and_k_that_are_not_permuted_as_gguf_demands_change_the_logits(
    gqa_file: Path, tmp_path: Path
) -> None:
    """The loader undoes GGUF's permutation, so a file without it must come out wrong."""
    ids = random_ids(40)
    ours = logits_after(load_tiny(write_tiny_gguf(tmp_path / "tiny.gguf", permute=False)), ids)
    assert (ours - oracle_logits(gqa_file, ids)).abs().max() > 0.1


@pytest.mark.long
@torch.inference_mode()
def test_every_checkpoint_equals_transformers_hidden_state(
    gqa_file: Path, llama: Llama, cache: Cache
) -> None:
    ids = random_ids(40)
    states = oracle(gqa_file)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    batch = Batch.from_chunks([Chunk(reserved(cache, "a", 40), 0, ids, True)])
    x = llama.embedding.rows(batch.ids)
    assert len(states) == len(llama.blocks) + 1
    for layer, block in enumerate(llama.blocks):
        assert_close(x, states[layer][0], atol=2e-5, rtol=0)
        x = block(x, cache.rope(batch.positions), batch, cache)
    assert_close(llama.norm(x), states[-1][0], atol=2e-5, rtol=0)


# However tokens are cut into batches and pages


@pytest.mark.long
def test_cached_decode_equals_full_recompute_at_every_step(llama: Llama, cache: Cache) -> None:
    ids = random_ids(150)
    at_once = llama.forward(
        Batch.from_chunks([Chunk(reserved(cache, "whole", len(ids)), 0, ids, len(ids))]), cache
    )
    pages = reserved(cache, "cached", len(ids))
    for position, token_id in enumerate(ids):
        found = llama.forward(Batch.from_chunks([Chunk(pages, position, [token_id], True)]), cache)[0]
        assert_close(found, at_once[position], atol=1e-5, rtol=0)
        if position % PAGE_TOKENS in (0, 1, 30, 62, 63):
            assert_close(found, logits_after(llama, ids[: position + 1]), atol=1e-5, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 64, 199])
def test_prefill_in_chunks_gives_the_same_logits(llama: Llama, chunk_tokens: int) -> None:
    ids = random_ids(200)
    assert_close(prefill_by(llama, ids, chunk_tokens), prefill_by(llama, ids, 200), atol=1e-5, rtol=0)


def test_a_prompt_longer_than_a_span_gives_the_same_logits_as_in_chunks(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", context_length=1_100)
    llama, ids = load_tiny(path), random_ids(1_100)
    cache = Cache(llama.config, num_pages=18)
    whole = logits_after(llama, ids, cache)
    pages = reserved(cache, "a", 1_100)
    for start in range(0, 1_100, 100):
        batch = Batch.from_chunks([Chunk(pages, start, ids[start : start + 100], True)])
        logits = llama.forward(batch, cache)
    assert_close(logits[0], whole, atol=2e-5, rtol=0)


@pytest.mark.parametrize("consecutive", [True, False])
def test_a_ragged_batch_equals_each_sequence_alone(llama: Llama, cache: Cache, consecutive: bool) -> None:
    """Lengths from 1 to 130; half are prefilled in the batch, half only decode in it."""
    cache.pages = Pages(64, consecutive=consecutive)
    texts = [random_ids(num_tokens, num_tokens) for num_tokens in (1, 2, 5, 31, 64, 65, 100, 130)]
    chunks = []
    for row, ids in enumerate(texts):
        pages = reserved(cache, str(row), len(ids))
        num_cached = len(ids) - 1 if row % 2 else 0
        if num_cached:
            llama.forward(Batch.from_chunks([Chunk(pages, 0, ids[:num_cached], False)]), cache)
        chunks.append(Chunk(pages, num_cached, ids[num_cached:], True))
    together = llama.forward(Batch.from_chunks(chunks), cache)
    alone = torch.stack([logits_after(llama, ids) for ids in texts])
    assert_close(together, alone, atol=1e-5, rtol=0)


def test_rows_that_want_no_logits_get_none(llama: Llama, cache: Cache) -> None:
    pages = reserved(cache, "a", 10)
    assert llama.forward(Batch.from_chunks([Chunk(pages, 0, [5, 6], False)]), cache).shape == (0, VOCAB_SIZE)


def test_a_page_that_was_used_before_gives_bit_equal_logits(llama: Llama, cache: Cache) -> None:
    ids = random_ids(100)
    first = logits_after(llama, ids, cache)
    logits_after(llama, random_ids(300, seed=1), cache)
    assert logits_after(llama, ids, cache).equal(first)


@pytest.mark.parametrize("consecutive", [True, False])
def test_what_lies_in_the_cache_of_others_changes_no_bit(llama: Llama, consecutive: bool) -> None:
    """Not even NaN, which a plain padded batch would spread."""
    ids = random_ids(100)
    clean, spoiled = (Cache(llama.config, num_pages=8) for _ in range(2))
    clean.pages, spoiled.pages = (Pages(8, consecutive=consecutive) for _ in range(2))
    spoiled.storage.fill_(torch.nan)
    assert logits_after(llama, ids, spoiled).equal(logits_after(llama, ids, clean))


def test_two_runs_are_bit_equal(gqa_file: Path, llama: Llama) -> None:
    ids = random_ids(100)
    assert logits_after(load_tiny(gqa_file), ids).equal(logits_after(llama, ids))


# The parts against plain formulas


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_rms_norm_equals_the_plain_formula(eps: float) -> None:
    x, weight = torch.randn(2, 7, 64), torch.randn(64)
    expected = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight
    assert_close(RMSNorm(weight, eps)(x), expected, atol=1e-6, rtol=1e-6)


def test_rms_norm_stands_float16_extremes() -> None:
    """6e4 squared is far beyond float16, so the sum must be taken in float32."""
    x = torch.tensor([[6e4, -6e4, 6e4, 0.0]], dtype=torch.float16)
    expected = x.double() / x.double().square().mean().sqrt()
    assert_close(RMSNorm(torch.ones(4), 1e-5)(x), expected.half())


def test_the_mlp_is_swiglu() -> None:
    gate, up, down = torch.randn(2, 24, 16) / 4, torch.randn(24, 16) / 4, torch.randn(16, 24) / 4
    gate = gate[0]
    x = torch.randn(5, 16)
    mlp = Mlp(Linear((DenseSegment(torch.cat((gate, up))),)), Linear((DenseSegment(down),)))
    assert_close(mlp(x), (silu(x @ gate.T) * (x @ up.T)) @ down.T, atol=1e-6, rtol=1e-6)


def test_bfloat16_stays_near_float32_and_gives_float32_logits(gqa_file: Path, llama: Llama) -> None:
    ids = random_ids(40)
    half = load_tiny(gqa_file, torch.bfloat16)
    logits = logits_after(half, ids, Cache(half.config, num_pages=8, dtype=torch.bfloat16))
    assert logits.dtype == torch.float32
    exact = logits_after(llama, ids)
    assert (logits - exact).norm() / exact.norm() < 0.03


# Who owns what


def methods_called_in(source: str) -> set[str]:
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {function.attr for function in calls if isinstance(function, ast.Attribute)}


@pytest.mark.long
def test_the_model_holds_weights_and_nothing_else(llama: Llama, gqa_file: Path) -> None:
    before = [id(tensor) for tensor in tensors_in(llama)]
    logits_after(llama, random_ids(40))
    assert [id(tensor) for tensor in tensors_in(llama)] == before
    num_parameters = sum(parameter.numel() for parameter in oracle(gqa_file).parameters())
    assert sum(tensor.numel() for tensor in tensors_in(llama)) == num_parameters


def test_only_the_cache_makes_rope_tables_and_masks() -> None:
    modules = list(Path(llama_herd.model.__path__[0]).glob("*.py"))

    def users(makers: set[str]) -> set[str]:
        return {path.name for path in modules if makers & methods_called_in(path.read_text())}

    assert users({"cos", "sin", "tril", "triu", "outer"}) == {"cache.py"}
    assert users({"arange"}) == {"cache.py", "batch.py"}, "these number their tokens"


def test_the_default_tiny_model_has_the_default_shape(llama: Llama) -> None:
    assert llama.config == tiny_config()
