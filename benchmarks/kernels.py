"""Products with quantised matrices: native kernels of each instruction set against torch's of numbers.

    herd kernels build
    python -m benchmarks.kernels

Each round times everything once, one after the other. Copies of a matrix take turns, so that none stays in a
cache. Inputs, and torch's numbers, are bfloat16.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from os import cpu_count
from statistics import median
from time import perf_counter

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from llama_herd.model.kernels.build import find
from llama_herd.model.kernels.instruction_set import INSTRUCTION_SETS
from llama_herd.model.kernels.native import Kernel, Kernels, load_library
from llama_herd.model.kernels.tiles import random_tiles
from llama_herd.worker.loading.kernels import kernels_folder
from llama_herd.worker.settings import WorkerSettings

SEED = 1


@dataclass(frozen=True)
class Plan:
    tokens: tuple[int, ...] = (1, 8, 12, 16, 32, 512)
    shapes: tuple[tuple[int, int], ...] = ((11_264, 2_048), (2_048, 2_048))  # rows, columns
    types: tuple[str, ...] = (
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q8_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ4_NL",
        "IQ4_XS",
    )
    copies: int = 4  # of each matrix
    rounds: int = 9
    threads: int = cpu_count() or 1


def libraries() -> dict[str, Kernels]:
    """What was built and runs here, by the name of its instruction set."""
    folder = kernels_folder(WorkerSettings.read())
    found = {set: find(folder, set) for set in INSTRUCTION_SETS if not set.complaint}
    return {set.name: load_library(set, path) for set, path in found.items() if path is not None}


Product = Callable[[Tensor, int], Tensor]


def products(shape: tuple[int, int], plan: Plan) -> dict[str, Product]:
    """All ways to multiply by a matrix of a shape, each by the number of its copy."""
    dense = [torch.randn(shape).bfloat16() for _ in range(plan.copies)]
    ways: dict[str, Product] = {"torch, bfloat16": lambda x, copy: linear(x, dense[copy])}
    for name in plan.types:
        type = GGMLType[name]
        tiles = [random_tiles(*shape, type) for _ in range(plan.copies)]
        for set_name, kernels in libraries().items():
            for kernel in sorted(kernels.kernels):
                ways[f"{name}, {set_name} {kernel.name}"] = native(kernels, tiles, type, shape[0], kernel)
    return ways


def native(kernels: Kernels, tiles: list[Tensor], type: GGMLType, num_rows: int, kernel: Kernel) -> Product:
    return lambda x, copy: kernels.multiply(x, tiles[copy], type, num_rows, kernel)


def medians_us(ways: dict[str, Product], x: Tensor, plan: Plan) -> dict[str, float]:
    """The median of the rounds by way; the first round only warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    copies = cycle(range(plan.copies))  # nobody reads what the one before him has brought into a cache
    for _ in range(plan.rounds + 1):
        for name, multiply in ways.items():
            copy = next(copies)
            started_s = perf_counter()
            multiply(x, copy)
            times[name].append(1e6 * (perf_counter() - started_s))
    return {name: round(median(found[1:]), 1) for name, found in times.items()}


def runs(plan: Plan) -> Iterator[Report]:
    for shape in plan.shapes:
        ways = products(shape, plan)
        for num_tokens in plan.tokens:
            x = torch.randn(num_tokens, shape[1]).bfloat16()
            yield {"shape": shape, "tokens": num_tokens, "us": medians_us(ways, x, plan)}


@torch.inference_mode()
def measure(plan: Plan) -> Report:
    torch.manual_seed(SEED)
    torch.set_num_threads(plan.threads)
    made = conditions()
    return {"benchmark": "kernels", "plan": asdict(plan), "conditions": made, "runs": list(runs(plan))}


def tables(report: Report) -> Iterator[Table]:
    for rows, columns in dict.fromkeys(tuple(run["shape"]) for run in report["runs"]):
        found = [run for run in report["runs"] if tuple(run["shape"]) == (rows, columns)]
        head = ["us a product", *(f"{run['tokens']:,} tokens" for run in found)]
        body = [[name, *(run["us"][name] for run in found)] for name in found[0]["us"]]
        yield Table(head, body, f"{columns:,} x {rows:,}")


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
