"""Weights of every type: how fast they are read, by ours and by the gguf package, on the same blocks.

    python -m benchmarks.weights types [--write]

Values a second of one thread, in CPU time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import process_time

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from benchmarks.harness import Benchmark, in_turns, main, timed_s
from benchmarks.report import Row, Table
from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.supported_types import SUPPORTED_TYPES

VALUES = (1024, 4096)


@dataclass(frozen=True)
class Types:
    """All but the one that holds numbers as they are. The better round of each counts."""

    types: tuple[str, ...] = tuple(type.name for type in SUPPORTED_TYPES if type is not GGMLType.F32)
    rounds: int = 5


def type_speed(type: GGMLType, rounds: int) -> Row:
    """Values a second, of ours and of the gguf package's, and how far they are apart."""
    blocks = stored_blocks(np.random.default_rng(0).standard_normal(VALUES, dtype=np.float32), type)
    ways = {
        "ours": partial(dequantize, torch.from_numpy(blocks), type),
        "theirs": partial(gguf.quants.dequantize, blocks, type),
    }
    found = in_turns({name: partial(timed_s, way, process_time) for name, way in ways.items()}, rounds)
    ours, theirs = (blocks.size / max(min(times_s), 1e-6) for times_s in found.values())
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    scale = block_values / block_bytes / 1e6
    return {
        "type": type.name,
        "bytes a weight": round(block_bytes / block_values, 3),
        "M values/s": ours * scale,
        "gguf package": theirs * scale,
        "times as fast": ours / theirs,
        "max error": float(np.abs(ways["ours"]().numpy() - ways["theirs"]()).max()),
    }


def measure_types(plan: Types) -> Iterator[Table]:
    torch.set_num_threads(1)
    rows = [type_speed(GGMLType[name], plan.rounds) for name in plan.types]
    yield Table(rows, "Reading blocks, one thread, CPU time")


TYPES = Benchmark("weights", __doc__, Types(), measure_types, part="types")

if __name__ == "__main__":
    main(TYPES)
