"""Attention of rows that decode: native kernels of each instruction set against torch's.

    herd kernels build
    python -m benchmarks.attention

One way after the other, since threads of torch spin for a while. Layers of a cache take turns, so
that none stays in a cache. Torch attends sequence by sequence, on one thread as in a worker
with kernels, and on all.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from os import cpu_count
from statistics import median
from time import perf_counter

import torch

from benchmarks.conditions import conditions
from benchmarks.kernels import libraries
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import random_config
from llama_herd.model.attend import attend
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.kernels.attention import Attention
from llama_herd.model.pages import PAGE_TOKENS, pages_for

SEED = 1
WARM_ROUNDS = 10


@dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (1, 8, 32, 64)
    lengths: tuple[int, ...] = (128, 512, 2048)
    tokens: int = 1  # of a row
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 64
    cache_bytes: int = 1 << 28  # and two layers at least
    rounds: int = 15
    threads: int = cpu_count() or 1


Way = Callable[[int], None]


def cache_of(plan: Plan, num_rows: int, length: int) -> Cache:
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


def ways(plan: Plan, num_rows: int, length: int) -> tuple[int, dict[str, Way]]:
    """All ways to attend, each by the number of the layer, and how many layers there are."""
    cache = cache_of(plan, num_rows, length)
    num_pages = pages_for(length)
    chunks = [
        Chunk(
            tuple(range(row * num_pages, (row + 1) * num_pages)),
            length - plan.tokens,
            [0] * plan.tokens,
            num_logits=1,
        )
        for row in range(num_rows)
    ]
    batch = Batch.from_chunks(chunks)
    q = torch.randn(num_rows * plan.tokens, plan.heads, plan.head_dim).bfloat16()

    def torch_way(threads: int) -> Way:
        def run(layer: int) -> None:
            torch.set_num_threads(threads)
            attend(q, cache, layer, batch)

        return run

    def native_way(attention: Attention) -> Way:
        def run(layer: int) -> None:
            torch.set_num_threads(plan.threads)
            attend(q, cache, layer, batch, native=attention)

        return run

    found = {f"torch, threads: {threads}": torch_way(threads) for threads in {1, plan.threads}}
    for name, kernels in libraries().items():
        if kernels.attention is not None:
            found[name] = native_way(kernels.attention)
    return cache.storage.shape[1], found


def medians_us(plan: Plan, num_layers: int, found: dict[str, Way]) -> dict[str, float]:
    """The median of the rounds by way; the first ones only wake the threads, and let others' sleep."""
    times: dict[str, list[float]] = {name: [] for name in found}
    layers = cycle(range(num_layers))
    for name, way in found.items():
        for _ in range(WARM_ROUNDS + plan.rounds):
            layer = next(layers)
            started_s = perf_counter()
            way(layer)
            times[name].append(1e6 * (perf_counter() - started_s))
    return {name: round(median(us[WARM_ROUNDS:]), 1) for name, us in times.items()}


def runs(plan: Plan) -> Iterator[Report]:
    for length in plan.lengths:
        for num_rows in plan.rows:
            num_layers, found = ways(plan, num_rows, length)
            yield {"length": length, "rows": num_rows, "us": medians_us(plan, num_layers, found)}


@torch.inference_mode()
def measure(plan: Plan) -> Report:
    torch.manual_seed(SEED)
    torch.set_num_threads(plan.threads)
    made = conditions()
    return {"benchmark": "attention", "plan": asdict(plan), "conditions": made, "runs": list(runs(plan))}


def tables(report: Report) -> Iterator[Table]:
    plan = report["plan"]
    bytes_a_key = 2 * plan["kv_heads"] * plan["head_dim"] * 2
    for length in plan["lengths"]:
        found = [run for run in report["runs"] if run["length"] == length]
        head = ["us a layer", *(f"{run['rows']} rows" for run in found)]
        body = [[name, *(run["us"][name] for run in found)] for name in found[0]["us"]]
        body.append(["MB of keys and values", *(run["rows"] * length * bytes_a_key / 1e6 for run in found)])
        yield Table(head, body, f"{length:,} keys a row")


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
