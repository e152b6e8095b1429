"""What Triton's compiler makes of every kernel for an H100 or H200, which need not be there.

    python -m benchmarks.gpu_kernels [--write]

`make test-kernels` makes the environment that has triton.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

import torch
import triton
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.compiled import HOPPER, Compiled
from benchmarks.conditions import conditions
from benchmarks.floors import Floors, Format
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import random_config
from llama_herd.model.kernels.gpu.attention import launches
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts
from llama_herd.model.kernels.gpu.launch import Launch
from llama_herd.model.kernels.gpu.products import TILES, dequantised, multiplied
from llama_herd.model.kernels.gpu.rows import adding, gating, normalising, turning
from llama_herd.model.kernels.scoring import Scoring
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.seen import Seen

LLAMA_7B = random_config(
    hidden_size=4_096, num_layers=32, num_heads=32, ffn_size=11_008, vocab_size=32_000, context_length=4_096
)
#: Heads, kv heads, numbers of a head, window, cap: Llama 2, Llama 3, a small one, Phi 3, Gemma 2.
ATTENTIONS = [
    (32, 32, 128, 0, 0.0),
    (32, 8, 128, 0, 0.0),
    (32, 8, 64, 0, 0.0),
    (32, 32, 96, 2_047, 0.0),
    (16, 8, 256, 4_096, 50.0),
]
#: Bytes and operations a second of an H200, as benchmarks/gpu means to measure them.
H200_BYTES_PER_S, H200_FLOP_PER_S = 4.3e12, 788e12
FORMATS = {"bf16": Format.BF16, "Q8_0": Format.Q8_0, "Q4_0": Format.Q4_0, "Q4_K": Format.Q4_K_M}
ROWS, CONTEXT = (1, 16, 64, 128, 256), 512


def attention_launches() -> Iterator[tuple[str, Launch]]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for heads, kv_heads, head_dim, window, cap in ATTENTIONS:
            q = torch.empty(8, heads, head_dim, dtype=dtype, device="meta")
            cached = torch.empty(2, kv_heads, 4_096, PAGE_TOKENS, head_dim, dtype=dtype, device="meta")
            seen = Seen(*(torch.empty(8, dtype=torch.int64, device="meta") for _ in range(4)))
            for num_splits in (1, 4):
                for launch in launches(q, cached, seen, q, num_splits, Scoring(0.1, window, cap)):
                    kind = f"{heads} heads, {kv_heads} kv, {head_dim}{', window and cap' if cap else ''}"
                    parts = "in one part" if num_splits == 1 else "in parts"
                    yield f"{launch.kernel.__name__} {parts}, {kind}, {_name(dtype)}", launch


def product_launches() -> Iterator[tuple[str, Launch]]:
    """For whole tiles, and for rows that end within one."""
    for type in sorted(PARTED_TYPES):
        for columns in (4_096, *([4_128] if type in (GGMLType.Q4_0, GGMLType.Q8_0) else [])):
            parts = BlockParts.empty(type, 4_096, columns, "meta")
            for dtype in (torch.bfloat16, torch.float16):
                for tile in TILES:
                    x = torch.empty(tile.num_tokens, columns, dtype=dtype, device="meta")
                    y = torch.empty(tile.num_tokens, 4_096, dtype=dtype, device="meta")
                    name = f"multiply, {type.name}, {columns} columns, to {tile.num_tokens} tokens"
                    yield f"{name}, {_name(dtype)}", multiplied(x, parts, y)
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                matrix = torch.empty(4_096, columns, dtype=dtype, device="meta")
                yield (
                    f"dequantise, {type.name}, {columns} columns, {_name(dtype)}",
                    dequantised(parts, matrix),
                )


def row_launches() -> Iterator[tuple[str, Launch]]:
    """Of Llama 2's and Llama 3's 8B and 70B."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for hidden, ffn in ((4_096, 11_008), (4_096, 14_336), (8_192, 28_672)):
            x, weight = torch.empty(8, hidden, dtype=dtype, device="meta"), torch.empty(hidden, device="meta")
            gate_up = torch.empty(8, 2 * ffn, dtype=dtype, device="meta")
            y = torch.empty(8, ffn, dtype=dtype, device="meta")
            if ffn != 14_336:
                yield f"normalise, {hidden} columns, {_name(dtype)}", normalising(x, weight, x, 1e-5)
                added = adding(x, x, weight, x, x, 1e-5, 1.0)
                yield f"add_and_normalise, {hidden} columns, {_name(dtype)}", added
            yield f"gate, {ffn} columns, {_name(dtype)}", gating(gate_up, y)
        for heads, kv_heads, head_dim, _, _ in ATTENTIONS:
            qkv = torch.empty(8, heads + 2 * kv_heads, head_dim, dtype=dtype, device="meta")
            angles = torch.empty(8, 1, head_dim, device="meta")
            cells = torch.empty(8, dtype=torch.int64, device="meta")
            cached = torch.empty(2, kv_heads, 4_096, PAGE_TOKENS, head_dim, dtype=dtype, device="meta")
            name = f"turn_and_keep, {heads} heads, {kv_heads} kv, {head_dim}, {_name(dtype)}"
            yield name, turning(qkv, angles, angles, cached, cells)


def compiled() -> list[dict[str, str | int]]:
    """All kernels, with what each takes."""
    found = []
    for name, launch in (*attention_launches(), *row_launches(), *product_launches()):
        made = Compiled.of(launch)
        found.append({"kernel": name, **asdict(made), "programs": made.programs})
    return found


def predicted_ms(format: Format, num_rows: int) -> float:
    """The least time of a step of a 7B model; from 65 rows on blocks are first made numbers in a scratch."""
    floors, dense = (
        Floors(LLAMA_7B, kind, H200_BYTES_PER_S, H200_FLOP_PER_S) for kind in (format, Format.BF16)
    )
    if num_rows <= TILES[-1].num_tokens or format is Format.BF16:
        return 1_000 * floors.decode_s(num_rows, CONTEXT)
    scratch_s = (floors.weight_bytes + dense.weight_bytes) / H200_BYTES_PER_S
    return 1_000 * (dense.decode_s(num_rows, CONTEXT) + scratch_s)


def measure() -> Report:
    steps = {name: [predicted_ms(format, num_rows) for num_rows in ROWS] for name, format in FORMATS.items()}
    return {
        "benchmark": "gpu_kernels",
        "conditions": conditions(),
        "triton": triton.__version__,
        "target": f"sm_{HOPPER.arch}",
        "kernels": compiled(),
        "predicted_ms": steps,
    }


def tables(report: Report) -> list[Table]:
    head = [
        "kernel",
        "registers",
        "spilled bytes",
        "shared bytes",
        "warps",
        "16-byte loads",
        "tensor",
        "at once",
    ]
    kernels = report["kernels"]
    rows = [list(kernel.values()) for kernel in kernels if not kernel["kernel"].endswith(" float16")]
    made = f"{len(kernels)} kernels by triton {report['triton']} for {report['target']}"
    title = f"{made}; those for float16 take what those for bfloat16 do"
    steps = [[name, *times] for name, times in report["predicted_ms"].items()]
    return [
        Table(head, rows, title),
        Table(["ms a step", *(f"{num_rows} rows" for num_rows in ROWS)], steps, "Predicted, never measured"),
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:  # for the tests
        print(json.dumps(compiled()))
    else:
        run_command(measure, tables, __doc__ or "")
