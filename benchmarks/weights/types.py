"""How fast the blocks of each type are read, by one thread, in CPU time."""

from collections.abc import Callable, Iterator, Sequence
from time import process_time
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as GGMLType

from benchmarks.measured import Report, Table
from benchmarks.stored_blocks import stored_blocks
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.supported_types import SUPPORTED_TYPES

VALUES = (1024, 4096)
#: Both take turns, and the better round of each counts.
ROUNDS = 5


#: All but the one that holds numbers as they are.
TYPES = tuple(type for type in SUPPORTED_TYPES if type is not GGMLType.F32)


def measure(types: Sequence[GGMLType] = TYPES) -> Report:
    torch.set_num_threads(1)
    return {"types": [type_speed(type) for type in types]}


def type_speed(type: GGMLType) -> dict[str, Any]:
    """Values a second, of ours and of the gguf package's, and how far they are apart."""
    blocks = stored_blocks(np.random.default_rng(0).standard_normal(VALUES, dtype=np.float32), type)
    ours_s, theirs_s = [], []
    for _ in range(ROUNDS):
        ours, seconds = _timed(lambda: dequantize(torch.from_numpy(blocks), type))
        ours_s.append(seconds)
        theirs, seconds = _timed(lambda: gguf.quants.dequantize(blocks, type))
        theirs_s.append(seconds)
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    return {
        "type": type.name,
        "bytes_per_weight": round(block_bytes / block_values, 3),
        "values_per_s": round(ours.numel() / max(min(ours_s), 1e-6)),
        "gguf_values_per_s": round(ours.numel() / max(min(theirs_s), 1e-6)),
        "max_error": float(np.abs(ours.numpy() - theirs).max()),
    }


def _timed(act: Callable[[], Any]) -> tuple[Any, float]:
    started_s = process_time()
    result = act()
    return result, process_time() - started_s


def tables(report: Report) -> Iterator[Table]:
    yield Table(
        ["type", "bytes a weight", "M values/s", "gguf package", "times as fast", "max error"],
        [
            [
                one["type"],
                one["bytes_per_weight"],
                one["values_per_s"] / 1e6,
                one["gguf_values_per_s"] / 1e6,
                one["values_per_s"] / one["gguf_values_per_s"],
                one["max_error"],
            ]
            for one in report["types"]
        ],
        "Reading blocks, one thread, CPU time",
    )
