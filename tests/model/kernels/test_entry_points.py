"""Every entry point of a native library, in odd shapes, touches what it is given and nothing beside it."""

import ctypes
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.cache import Rope
from llama_herd.model.kernels.attention import attention_call
from llama_herd.model.kernels.block_types import NUMBERS, TILED_TYPES
from llama_herd.model.kernels.build import SOURCES
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.draw import ROOM
from llama_herd.model.kernels.elementwise import ACTIVATION_NUMBERS
from llama_herd.model.kernels.native import Kernel, Kernels
from llama_herd.model.kernels.tiles import block_size, blocks_of, random_tiles
from llama_herd.model.native_decoder import NativeDecoder, Token
from llama_herd.model.native_layers import LayerParts, NativeLayers, Vectors
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.weights.linear import Linear, NativeSegment
from tests.model.kernels.fences import between_fences

pytestmark = pytest.mark.long

DTYPES = (torch.float32, torch.bfloat16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(scope="module")
def kernels(set_kernels: Kernels) -> Kernels:
    return set_kernels.with_threads(3)


def types_of(kernels: Kernels) -> list[GGMLType]:
    return sorted(TILED_TYPES) + [NUMBERS] * kernels.has_numbers


def test_a_library_says_what_it_has(kernels: Kernels) -> None:
    assert kernels.library.herd_kernels() & 1 << Kernel.FLOAT32


def test_blocks_are_laid_out(kernels: Kernels) -> None:
    for type in types_of(kernels):
        for num_rows, num_blocks in ((16, 1), (48, 3)):
            tiles = random_tiles(num_rows, num_blocks * block_size(type)[0], type)

            def lay_out(blocks: Tensor, type: GGMLType = type, tiles: Tensor = tiles) -> Tensor:
                laid_out = blocks.new_empty(*tiles.shape)
                kernels.lay_out(blocks, laid_out, type)
                return laid_out

            assert between_fences(lay_out, blocks_of(tiles, torch.arange(num_rows), type)).equal(tiles)


@dtypes
def test_rows_are_looked_up(kernels: Kernels, dtype: torch.dtype) -> None:
    for type in types_of(kernels):
        for num_rows, num_blocks in ((1, 1), (45, 3)):
            tiles, ids = (
                random_tiles(num_rows, num_blocks * block_size(type)[0], type),
                torch.arange(num_rows),
            )

            def look_up(tiles: Tensor, ids: Tensor, type: GGMLType = type) -> Tensor:
                return kernels.look_up(tiles, ids, type, dtype)

            expected = dequantize(blocks_of(tiles, ids, type), type).to(dtype)
            assert between_fences(look_up, tiles, ids).equal(expected)
            for wrong in (-1, -(-num_rows // 16) * 16):
                with pytest.raises(IndexError, match="in tiles of"):
                    look_up(tiles, torch.tensor([0, wrong]))


@pytest.mark.drawn
@dtypes
@pytest.mark.parametrize("num_rows", [1, 15, 17, 90])
def test_products(kernels: Kernels, dtype: torch.dtype, num_rows: int) -> None:
    for type in types_of(kernels):
        ways = (
            kernels.kernels if type is not NUMBERS else {Kernel.NUMBERS} if dtype is torch.bfloat16 else set()
        )
        for kernel in ways:
            for num_tokens, num_blocks in (
                (1, 1),
                (2, 3),
                (7, 1),
                (9, 2),
                (16, 1),
                (17, 3),
                (33, 1),
                (130, 2),
            ):
                columns = num_blocks * block_size(type)[0]

                def multiply(
                    x: Tensor, tiles: Tensor, type: GGMLType = type, kernel: Kernel = kernel
                ) -> Tensor:
                    return kernels.multiply(x, tiles, type, num_rows, kernel)

                x = torch.randn(num_tokens, columns).to(dtype)
                y = between_fences(multiply, x, random_tiles(num_rows, columns, type))
                assert y.isfinite().all()


@pytest.mark.parametrize("number", [0.0, 1e-44, 3e38, torch.inf, -torch.inf, torch.nan])
def test_products_of_extreme_numbers(kernels: Kernels, number: float) -> None:
    for dtype in DTYPES:
        for kernel in kernels.kernels:
            x = torch.randn(9, 512).to(dtype)
            x[::2, ::37] = number
            for type in TILED_TYPES:
                tiles = random_tiles(33, 512, type).random_(0, 256)  # scales that are no numbers too
                between_fences(lambda x, tiles: kernels.multiply(x, tiles, type, 33, kernel), x, tiles)  # noqa: B023


def test_no_tokens_are_no_work(kernels: Kernels) -> None:
    tiles = random_tiles(17, 256, GGMLType.Q4_K)
    for kernel in kernels.kernels:
        assert kernels.multiply(torch.empty(0, 256), tiles, GGMLType.Q4_K, 17, kernel).shape == (0, 17)


@pytest.mark.drawn
@dtypes
@pytest.mark.parametrize("columns", [1, 2, 7, 8, 9, 16, 31, 33, 310])
def test_norms_and_gates(kernels: Kernels, dtype: torch.dtype, columns: int) -> None:
    rows = kernels.elementwise
    assert rows is not None
    for num_rows in (1, 3, 300):
        x = torch.randn(num_rows, 2 * columns).to(dtype)
        between_fences(lambda x, weight: rows.norm(x, weight, 1e-5), x, torch.randn(2 * columns))
        for activation in ACTIVATION_NUMBERS:
            between_fences(partial(rows.gate, activation=activation), x)
        x[0] = torch.inf
        x[-1] = torch.nan
        between_fences(lambda x, weight: rows.norm(x, weight, 1e-5), x, torch.randn(2 * columns))
        for activation in ACTIVATION_NUMBERS:
            between_fences(partial(rows.gate, activation=activation), x)
    assert rows.norm(torch.empty(0, columns), torch.ones(columns), 1e-5).shape == (0, columns)


def random_cache(kv_heads: int, num_pages: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(2, kv_heads, num_pages, PAGE_TOKENS, head_dim).to(dtype)


@pytest.mark.drawn
@dtypes
@pytest.mark.parametrize("head_dim", [2, 6, 18, 44, 64, 80, 130, 256])
def test_rotation(kernels: Kernels, dtype: torch.dtype, head_dim: int) -> None:
    rotation = kernels.rotation
    assert rotation is not None

    def rotate(qkv: Tensor, cos: Tensor, sin: Tensor, cached: Tensor, cells: Tensor) -> Tensor:
        rotation(qkv, cos, sin, cached, cells)
        return torch.cat((qkv.flatten(), cached.flatten()))

    def normalise(
        qkv: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, cached: Tensor, cells: Tensor
    ) -> Tensor:
        rotation(qkv, cos, sin, cached, cells, SimpleNamespace(weight=weight, eps=1e-5))
        return qkv

    for heads, kv_heads, cells in ((1, 1, [191]), (5, 1, [0, 191]), (6, 3, [63, 64, 65, 7, 190])):
        qkv = torch.randn(len(cells), heads + 2 * kv_heads, head_dim).to(dtype)
        turn = torch.randn(2, len(cells), 1, head_dim)
        cached = random_cache(kv_heads, 3, head_dim, dtype)
        between_fences(rotate, qkv, *turn, cached, torch.tensor(cells))
        weight = torch.randn(heads + kv_heads, head_dim)
        between_fences(normalise, qkv, weight, *turn, cached, torch.tensor(cells))


def tables_of(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Where the pages of each sequence begin, and all pages, the last of which ends the cache."""
    counts = [pages_for(length) for length in lengths]
    return torch.tensor([0, *counts]).cumsum(0)[:-1], torch.arange(sum(counts))


@pytest.mark.drawn
@dtypes
@pytest.mark.parametrize("head_dim", [2, 18, 80, 130, 256])
@pytest.mark.parametrize("groups", [(1, 1), (6, 2), (19, 1)], ids=str)
def test_attention(kernels: Kernels, dtype: torch.dtype, head_dim: int, groups: tuple[int, int]) -> None:
    attention, (heads, kv_heads) = kernels.attention, groups
    assert attention is not None
    for lengths in ([1], [63, 64, 65, 1, 257], [700, 17], [4_500]):
        tables, pages = tables_of(lengths)
        q = torch.randn(len(lengths), heads, head_dim).to(dtype)
        cached = random_cache(kv_heads, len(pages), head_dim, dtype)
        seen = (torch.arange(len(lengths)), torch.tensor(lengths), tables, pages)
        for window, cap in ((0, 0.0), (1, 0.0), (65, 3.0), (5_000, 0.0)):

            def attend(
                q: Tensor, cached: Tensor, *seen: Tensor, window: int = window, cap: float = cap
            ) -> Tensor:
                out = torch.empty_like(q)
                attention(q, cached, Seen(*seen), out, Scoring(0.1, window, cap))
                return out

            assert between_fences(attend, q, cached, *seen).isfinite().all()


def test_no_rows_attend(kernels: Kernels) -> None:
    """Nor is there a lack of memory to do that in, also by a thread that has done nothing before."""
    attention, none = kernels.attention, torch.empty(0, dtype=torch.int64)
    assert attention is not None
    cached, q = random_cache(1, 1, 64, torch.float32), torch.empty(0, 2, 64)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(
            lambda: attention(q, cached, Seen(none, none, none, none), torch.empty_like(q), Scoring(0.1))
        ).result()


@pytest.mark.drawn
@pytest.mark.parametrize("head_dim", [2, 18, 80, 130, 256])
@pytest.mark.parametrize("groups", [(1, 1), (6, 2), (19, 1)], ids=str)
def test_attention_of_prompts(kernels: Kernels, head_dim: int, groups: tuple[int, int]) -> None:
    attention, (heads, kv_heads) = kernels.prefill_attention, groups
    if attention is None:
        none = torch.empty(0, dtype=torch.int64)
        call = attention_call(
            1, random_cache(1, 1, 2, torch.bfloat16), Seen(none, none, none, none), Scoring(), 1
        )
        assert not kernels.library.herd_attend_spans(ctypes.byref(call), None)
        return
    for spans in ([(0, 5)], [(0, 64), (63, 65), (250, 7)], [(700, 33)], [(0, 300)]):
        starts, counts = (torch.tensor([span[i] for span in spans]) for i in range(2))
        tables, pages = tables_of((starts + counts).tolist())
        q = torch.randn(int(counts.sum()), heads, head_dim).bfloat16()
        cached = random_cache(kv_heads, len(pages), head_dim, torch.bfloat16)
        seen = (counts.cumsum(0) - counts, starts + 1, tables, pages, counts)
        for window, cap in ((0, 0.0), (1, 0.0), (65, 3.0), (5_000, 0.0)):

            def attend(
                q: Tensor, cached: Tensor, *seen: Tensor, window: int = window, cap: float = cap
            ) -> Tensor:
                out = torch.empty_like(q)
                seen_spans = SeenSpans(Seen(*seen[:4]), seen[4], int(seen[4].max()))
                attention(q, cached, seen_spans, out, Scoring(0.1, window, cap))
                return out

            assert between_fences(attend, q, cached, *seen).isfinite().all()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("num_tokens", [1, 4, 15, 16, 17, 32, 33, 1_000])
def test_draws(kernels: Kernels, num_tokens: int) -> None:
    draw = kernels.draw
    assert draw is not None

    def candidates(*inputs: Tensor) -> Tensor:
        found = draw.candidates(*inputs)
        if found is None:
            return torch.tensor([-1])
        ids, count = found
        assert bool((ids < num_tokens).all())
        return torch.cat((ids.flatten(), count.flatten()))

    for num_rows in (1, 40):
        for number in (0.0, 1e30, -1e30, torch.inf, -torch.inf, torch.nan):
            logits = torch.randn(num_rows, num_tokens)
            for changed in (slice(0, 0), slice(0, 1), slice(None)):
                logits[-1, changed] = number
                for temperature in (1e-6, 1.0):
                    inputs = torch.full((num_rows,), temperature), torch.randint(-(2**31), 2**31, (num_rows,))
                    limits = logits.amax(dim=-1), torch.full((num_rows,), -torch.inf)
                    between_fences(candidates, logits, *inputs, *limits)
    assert ROOM < 1_000


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 1000])
def test_the_largest_logits(kernels: Kernels, num_tokens: int) -> None:
    draw = kernels.draw
    assert draw is not None

    def largest(logits: Tensor) -> Tensor:
        values, ids = draw.largest(logits)
        return torch.cat((values.double(), ids.double()))

    for number in (0.0, 1e30, torch.inf, -torch.inf, torch.nan):
        logits = torch.randn(40, num_tokens)
        logits[::2, torch.randint(num_tokens, (num_tokens // 8 + 1,))] = number
        found = between_fences(largest, logits)
        values, ids = logits.max(dim=-1)
        assert torch.cat((values.double(), ids.double())).allclose(found, equal_nan=True)


def test_a_row_of_no_numbers_has_no_candidates(kernels: Kernels) -> None:
    """However few tokens there are."""
    draw = kernels.draw
    assert draw is not None
    one, state = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    for number in (-torch.inf, torch.nan):
        logits = torch.full((1, 20), number)
        assert draw.candidates(logits, one, state, logits.amax(dim=-1), -one * torch.inf) is None


class OneWay(Kernels):
    """Kernels that multiply in their one way, however many the tokens are."""

    def kernel_for(self, dtype: torch.dtype, num_tokens: int) -> Kernel:
        (way,) = self.kernels
        return way


def ways(kernels: Kernels, dtype: torch.dtype) -> Iterator[OneWay]:
    """Each way to multiply by blocks, for inputs of this type."""
    for way in kernels.kernels if dtype is torch.bfloat16 else {Kernel.FLOAT32}:
        yield OneWay(**{**vars(kernels), "kernels": frozenset({way})})


def segment(kernels: Kernels, tiles: Tensor, num_rows: int, type: GGMLType) -> NativeSegment:
    return NativeSegment(kernels, type, tiles, num_rows, torch.float32)


@dataclass(frozen=True)
class Shape:
    """Of a layer: its sizes, and the types of the matrices of each input, which share their rows evenly."""

    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    ffn: int
    qkv: str
    output: str
    gate_up: str
    down: str
    is_qwen: bool = False  # has a bias, and a norm of heads
    is_gemma: bool = False  # has norms of what is added, another gate, and a window

    def matrices(self) -> list[list[tuple[int, int, GGMLType]]]:
        """Rows, columns and type of each matrix, by what they are multiplied by."""
        H, K, D, C, F = self.heads, self.kv_heads, self.head_dim, self.hidden, self.ffn
        sizes = (((H + 2 * K) * D, C), (C, H * D), (2 * F, C), (C, F))
        names = (one.split() for one in (self.qkv, self.output, self.gate_up, self.down))
        return [
            [(rows // len(types), columns, GGMLType[type]) for type in types]
            for (rows, columns), types in zip(sizes, names, strict=True)
        ]

    def vectors(self) -> list[Tensor]:
        """Norms of attention and MLP, those of what they add, that of heads, and the bias."""
        heads, kv_heads, D = self.heads, self.kv_heads, self.head_dim
        norms = [torch.randn(self.hidden) for _ in range(4)]
        return [*norms, torch.randn(heads + kv_heads, D), torch.randn((heads + 2 * kv_heads) * D)]

    def parts(self, kernels: Kernels, *given: Tensor) -> LayerParts:
        """A layer of its vectors, and tiles."""
        *norms, head_norm, bias = given[:6]
        next_tiles, parts = iter(given[6:]), self.matrices()
        qkv, output, gate_up, down = (
            Linear(tuple(segment(kernels, next(next_tiles), rows, type) for rows, _, type in part))
            for part in parts
        )
        linears = replace(qkv, bias=bias if self.is_qwen else None), output, gate_up, down
        vectors = Vectors(norms[0], norms[1], head_norm=head_norm if self.is_qwen else None)
        if self.is_gemma:
            vectors = vectors._replace(attention_post_norm=norms[2], mlp_post_norm=norms[3])
        activation = "gelu_pytorch_tanh" if self.is_gemma else "silu"
        return LayerParts(vectors, linears, Scoring(window=9 if self.is_gemma else 0), activation)

    def call(self, kernels: Kernels, x: Tensor, *others: Tensor) -> Tensor:
        """What comes out of the layer for vectors, cos, sin, cells, cache, what is seen, and tiles."""
        vectors, (cos, sin, cells, cached, *rest) = others[:6], others[6:]
        parts = self.parts(kernels, *vectors, *rest[4:])
        batch: Any = SimpleNamespace(cells=cells, seen=Seen(*rest[:4]), is_short=True)
        cache: Any = SimpleNamespace(storage=cached.unsqueeze(1))
        rope = Rope(cos, sin)
        return NativeLayers(kernels, [parts], self.heads, 1e-5)(x, rope, rope, batch, cache)


LAYERS = [
    Shape(1, 1, 32, 32, 32, "Q8_0", "Q4_0", "Q4_0", "Q8_0"),
    Shape(1, 1, 32, 512, 32, "Q8_0", "Q8_0 Q4_0", "Q8_0 Q4_0", "Q4_0 Q8_0"),  # its output is the widest
    Shape(3, 1, 96, 288, 160, "Q4_0 Q8_0 Q4_0", "Q8_0", "Q8_0", "Q8_0"),
    Shape(3, 1, 96, 288, 160, "Q4_0 Q4_1 Q5_1", "Q4_1", "Q5_0", "Q5_1"),
    Shape(1, 1, 32, 32, 32, "IQ4_NL", "MXFP4", "IQ4_NL Q5_0", "MXFP4"),
    Shape(4, 2, 64, 256, 768, "Q4_K Q6_K", "Q6_K", "Q6_K", "Q6_K"),
    Shape(2, 2, 128, 512, 256, "Q6_K", "Q4_K", "Q4_K", "Q4_K"),
    Shape(3, 1, 96, 288, 160, "Q8_0", "Q8_0", "Q8_0", "Q8_0", is_qwen=True),
    Shape(3, 1, 96, 288, 160, "Q8_0", "Q8_0", "Q8_0", "Q8_0", is_gemma=True),
    Shape(4, 2, 64, 512, 768, "Q5_K IQ4_XS", "Q3_K", "Q2_K Q3_K", "IQ4_XS"),
]


@pytest.mark.drawn(1)
@dtypes
@pytest.mark.parametrize("shape", LAYERS, ids=lambda shape: f"{shape.hidden}-{shape.ffn}")
def test_a_layer(kernels: Kernels, shape: Shape, dtype: torch.dtype) -> None:
    tiles = [random_tiles(*one) for part in shape.matrices() for one in part]
    for num_tokens in (1, 2, 5, 17, 64):
        lengths = torch.arange(num_tokens) * 7 % 150 + 1
        tables, pages = tables_of(lengths.tolist())
        ends = lengths - 1
        cells = pages[tables + ends // PAGE_TOKENS] * PAGE_TOKENS + ends % PAGE_TOKENS
        cached = random_cache(shape.kv_heads, len(pages), shape.head_dim, dtype)
        turn = torch.randn(2, num_tokens, 1, shape.head_dim)
        seen = (torch.arange(num_tokens), lengths, tables, pages)
        inputs = (
            torch.randn(num_tokens, shape.hidden).to(dtype),
            *shape.vectors(),
            *turn,
            cells,
            cached,
            *seen,
            *tiles,
        )
        for way in ways(kernels, dtype):
            assert between_fences(partial(shape.call, way), *inputs).isfinite().all()


VOCAB_SIZE = 45


def decoded(
    kernels: Kernels, shape: Shape, outer: list[GGMLType], tokens: list[Token], *inputs: Tensor
) -> Tensor:
    """What a step through two layers finds: by norm, vectors, tiles, cos, sin, cache, embedding, output."""
    norm, *of_layer, cos, sin, cached, embedding, output = inputs
    layers = NativeLayers(kernels, [shape.parts(kernels, *of_layer)] * 2, shape.heads, 1e-5)
    decoder = NativeDecoder(
        segment(kernels, embedding, VOCAB_SIZE, outer[0]),
        layers,
        norm,
        Linear((segment(kernels, output, VOCAB_SIZE, outer[-1]),)),
        Rope(cos, sin),
        cached,
        len(tokens),
    )
    found = decoder(tokens)
    return torch.cat((found.logits.flatten(), torch.tensor([*found.largest, *found.ids])))


@dtypes
@pytest.mark.drawn(1)
@pytest.mark.parametrize("shape", LAYERS, ids=lambda shape: f"{shape.hidden}-{shape.ffn}")
def test_a_whole_step(kernels: Kernels, shape: Shape, dtype: torch.dtype) -> None:
    """The last token fills the last page of the cache."""
    types = [GGMLType[name] for name in shape.qkv.split() + shape.down.split()]
    outer = [type for type in types if shape.hidden % block_size(type)[0] == 0]
    tiles = [random_tiles(*one) for part in shape.matrices() for one in part]
    for num_tokens in (1, 2, 5, 17, 64):
        tokens = [Token(7 * one % VOCAB_SIZE, 7 * one % 150, 3 * one) for one in range(num_tokens)]
        tokens[-1] = tokens[-1]._replace(position=3 * PAGE_TOKENS - 1)
        layers = [random_cache(shape.kv_heads, 3 * num_tokens, shape.head_dim, dtype) for _ in range(2)]
        inputs = (
            torch.randn(shape.hidden),
            *shape.vectors(),
            *tiles,
            *torch.randn(2, 3 * PAGE_TOKENS, 1, shape.head_dim),
            torch.stack(layers, dim=1),
            *(random_tiles(VOCAB_SIZE, shape.hidden, type) for type in (outer[0], outer[-1])),
        )
        for way in ways(kernels, dtype):
            call = partial(decoded, way, shape, outer, tokens)
            assert between_fences(call, *inputs).isfinite().all()


#: Which tests drive which entry points.
DRIVEN = {
    "herd_kernels": test_a_library_says_what_it_has,
    "herd_lay_out": test_blocks_are_laid_out,
    "herd_multiply": test_products,
    "herd_attend": test_attention,
    "herd_attend_spans": test_attention_of_prompts,
    "herd_norm": test_norms_and_gates,
    "herd_gate": test_norms_and_gates,
    "herd_rotate": test_rotation,
    "herd_draw": test_draws,
    "herd_largest": test_the_largest_logits,
    "herd_layers": test_a_layer,
    "herd_decode": test_a_whole_step,
    "herd_look_up": test_rows_are_looked_up,
}


def test_every_entry_point_is_driven() -> None:
    source = (SOURCES / "library.cpp").read_text()
    assert set(re.findall(r"^API \w+ (\w+)\(", source, re.MULTILINE)) == set(DRIVEN)
