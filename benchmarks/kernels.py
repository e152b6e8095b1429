"""Native kernels of each instruction set against torch's: products with quantised matrices, and attention.

    herd kernels build
    python -m benchmarks.kernels products|attention

Copies of a matrix, or layers of a cache, take turns, so that none stays in a processor's cache. Inputs, and
torch's numbers, are bfloat16. Products: each round times everything once. Attention of rows that decode: one
way after the other, since threads of torch spin for a while; torch attends on one thread, as in a worker with
kernels, and on all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from os import cpu_count

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.harness import Benchmark, in_turns, main, timed_s
from benchmarks.report import Cell, Table, across
from benchmarks.shapes import random_config
from llama_herd.model.attend import attend
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.kernels.attention import Attention
from llama_herd.model.kernels.build import find
from llama_herd.model.kernels.instruction_set import INSTRUCTION_SETS
from llama_herd.model.kernels.native import Kernel, Kernels, load_library
from llama_herd.model.kernels.tiles import random_tiles
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.worker.loading.kernels import kernels_folder
from llama_herd.worker.settings import WorkerSettings

SEED, WARM_ROUNDS = 1, 10
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")

#: What is timed, by the number of the copy or layer that it reads.
Way = Callable[[int], object]


@dataclass(frozen=True)
class Products:
    tokens: tuple[int, ...] = (1, 8, 12, 16, 32, 512)
    shapes: tuple[tuple[int, int], ...] = ((11_264, 2_048), (2_048, 2_048))  # rows, columns
    types: tuple[str, ...] = TYPES
    copies: int = 4  # of each matrix
    rounds: int = 9
    threads: int = cpu_count() or 1


@dataclass(frozen=True)
class Attending:
    rows: tuple[int, ...] = (1, 8, 32, 64)
    lengths: tuple[int, ...] = (128, 512, 2048)
    tokens: int = 1  # of a row
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 64
    cache_bytes: int = 1 << 28  # and two layers at least
    rounds: int = 15
    threads: int = cpu_count() or 1


def libraries() -> dict[str, Kernels]:
    """What was built and runs here, by the name of its instruction set."""
    folder = kernels_folder(WorkerSettings.read())
    found = {set: find(folder, set) for set in INSTRUCTION_SETS if not set.complaint}
    return {set.name: load_library(set, path) for set, path in found.items() if path is not None}


def product_ways(shape: tuple[int, int], plan: Products) -> dict[str, Callable[[Tensor, int], Tensor]]:
    """All ways to multiply by a matrix of a shape."""
    dense = [torch.randn(shape).bfloat16() for _ in range(plan.copies)]
    ways: dict[str, Callable[[Tensor, int], Tensor]] = {}
    ways["torch, bfloat16"] = lambda x, copy: linear(x, dense[copy])
    for name in plan.types:
        type = GGMLType[name]
        tiles = [random_tiles(*shape, type) for _ in range(plan.copies)]
        for set_name, kernels in libraries().items():
            for kernel in sorted(kernels.kernels):
                ways[f"{name}, {set_name} {kernel.name}"] = _native(kernels, tiles, type, shape[0], kernel)
    return ways


def _native(
    kernels: Kernels, tiles: list[Tensor], type: GGMLType, num_rows: int, kernel: Kernel
) -> Callable[[Tensor, int], Tensor]:
    return lambda x, copy: kernels.multiply(x, tiles[copy], type, num_rows, kernel)


def measure_products(plan: Products) -> Iterator[Table]:
    torch.manual_seed(SEED)
    torch.set_num_threads(plan.threads)
    for rows, columns in plan.shapes:
        ways, copies = product_ways((rows, columns), plan), cycle(range(plan.copies))
        found: dict[str, dict[str, Cell]] = {}
        for num_tokens in plan.tokens:
            x = torch.randn(num_tokens, columns).bfloat16()
            acts = {name: partial(_product_s, way, x, copies) for name, way in ways.items()}
            found[f"{num_tokens:,} tokens"] = _us(in_turns(acts, plan.rounds, warm=1))
        yield across("us a product", found, f"{columns:,} x {rows:,}")


def _product_s(way: Callable[[Tensor, int], Tensor], x: Tensor, copies: Iterator[int]) -> float:
    copy = next(copies)
    with torch.inference_mode():
        return timed_s(lambda: way(x, copy))


def _us(found: dict[str, list[float]]) -> dict[str, Cell]:
    return {name: [1e6 * one for one in times_s] for name, times_s in found.items()}


def cache_of(plan: Attending, num_rows: int, length: int) -> Cache:
    """Of random numbers, with room for all rows in each layer."""
    num_pages = num_rows * pages_for(length)
    layer_bytes = 4 * num_pages * PAGE_TOKENS * plan.kv_heads * plan.head_dim
    config = random_config(
        hidden_size=plan.heads * plan.head_dim,
        num_layers=min(64, max(2, plan.cache_bytes // layer_bytes)),
        num_heads=plan.heads,
        num_kv_heads=plan.kv_heads,
        ffn_size=32,
    )
    cache = Cache(config, num_pages, dtype=torch.bfloat16, max_length=length)
    cache.storage.copy_(torch.randn(cache.storage.shape[-2:]))
    return cache


def attention_ways(plan: Attending, cache: Cache, num_rows: int, length: int) -> dict[str, Way]:
    """All ways to attend."""
    size, num_new = pages_for(length), plan.tokens
    runs = [tuple(range(row * size, (row + 1) * size)) for row in range(num_rows)]
    batch = Batch.from_chunks([Chunk(run, length - num_new, [0] * num_new, num_logits=1) for run in runs])
    q = torch.randn(num_rows * num_new, plan.heads, plan.head_dim).bfloat16()

    def way(threads: int, native: Attention | None, layer: int) -> None:
        torch.set_num_threads(threads)
        attend(q, cache, layer, batch, native=native)

    return {
        **{f"torch, threads: {one}": partial(way, one, None) for one in {1, plan.threads}},
        **{
            name: partial(way, plan.threads, kernels.attention)
            for name, kernels in libraries().items()
            if kernels.attention is not None
        },
    }


@torch.inference_mode()
def attention_us(plan: Attending, num_rows: int, length: int) -> dict[str, Cell]:
    """By way; the first rounds only wake its threads, and let others' sleep."""
    cache = cache_of(plan, num_rows, length)
    layers, found = cycle(range(cache.storage.shape[1])), dict[str, list[float]]()
    for name, way in attention_ways(plan, cache, num_rows, length).items():
        times_s = [timed_s(partial(way, next(layers))) for _ in range(WARM_ROUNDS + plan.rounds)]
        found[name] = times_s[WARM_ROUNDS:]
    num_bytes = num_rows * length * 2 * plan.kv_heads * plan.head_dim * 2
    return {**_us(found), "MB of keys and values": num_bytes / 1e6}


def measure_attention(plan: Attending) -> Iterator[Table]:
    torch.manual_seed(SEED)
    for length in plan.lengths:
        columns = {f"{num_rows} rows": attention_us(plan, num_rows, length) for num_rows in plan.rows}
        yield across("us a layer", columns, f"{length:,} keys a row")


PRODUCTS = Benchmark("kernels", __doc__, Products(), measure_products, part="products")
ATTENTION = Benchmark("kernels", __doc__, Attending(), measure_attention, part="attention")

if __name__ == "__main__":
    main(PRODUCTS, ATTENTION)
