"""What Triton's compiler makes of every kernel for cards that need not be there.

    python -m benchmarks.gpu_kernels [--write]
    python -m benchmarks.gpu_kernels --check         # only whether each has room; exits with 1 if not
    python -m benchmarks.gpu_kernels --check sm_86   # there alone, and for bfloat16, the default

`make test-kernels` makes the environment that has triton.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
import triton
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.compiled import HOPPER, TARGETS, Compiled, Target
from benchmarks.harness import Benchmark, NoPlan, main
from benchmarks.report import Row, Table
from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.kernels.elementwise import ACTIVATION_NUMBERS
from llama_herd.model.kernels.gpu.attention import launches
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts
from llama_herd.model.kernels.gpu.launch import Launch
from llama_herd.model.kernels.gpu.products import HOPPER_TILES, TILES, Tile, dequantised, multiplied
from llama_herd.model.kernels.gpu.rows import adding, gating, normalising, turning
from llama_herd.model.kernels.gpu.span_attention import attending
from llama_herd.model.kernels.trials import TriedNorm
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.tiling import SPAN_TOKENS

#: What products of up to 64 tokens may spill of a thread: some registers in the L1 cache cost a Hopper less
#: than a smaller tile does (docs/decisions/0016). No other kernel may spill any.
MAX_SPILLED_BYTES = 96
#: Heads, kv heads, numbers of a head, window, cap: Llama 2, Llama 3, a small one, Phi 3, Gemma 2.
ATTENTIONS = [
    (32, 32, 128, 0, 0.0),
    (32, 8, 128, 0, 0.0),
    (32, 8, 64, 0, 0.0),
    (32, 32, 96, 2_047, 0.0),
    (16, 8, 256, 4_096, 50.0),
]


def attention_launches() -> Iterator[tuple[str, Launch]]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for heads, kv_heads, head_dim, window, cap in ATTENTIONS:
            q = torch.empty(8, heads, head_dim, dtype=dtype, device="meta")
            cached = torch.empty(2, kv_heads, 4_096, PAGE_TOKENS, head_dim, dtype=dtype, device="meta")
            seen = Seen(*(torch.empty(8, dtype=torch.int64, device="meta") for _ in range(4)))
            scoring = Scoring(0.1, window, cap)
            kind = f"{heads} heads, {kv_heads} kv, {head_dim}{', window and cap' if cap else ''}"
            spans = SeenSpans(seen, seen.num_keys, SPAN_TOKENS)
            yield f"attend_spans, {kind}, {_name(dtype)}", attending(q, cached, spans, q, scoring)
            for num_splits in (1, 4):
                for launch in launches(q, cached, seen, q, num_splits, scoring):
                    parts = "in one part" if num_splits == 1 else "in parts"
                    yield f"{launch.kernel.__name__} {parts}, {kind}, {_name(dtype)}", launch


def product_launches(tiles: Sequence[Tile] = TILES) -> Iterator[tuple[str, Launch]]:
    """For whole tiles, and for rows that end within one."""
    for type in sorted(PARTED_TYPES):
        for columns in (4_096, *([4_128] if type in (GGMLType.Q4_0, GGMLType.Q8_0) else [])):
            parts = BlockParts.empty(type, 4_096, columns, "meta")
            for dtype in (torch.bfloat16, torch.float16):
                for num_tokens in (1, *(tile.num_tokens for tile in TILES)):
                    x = torch.empty(num_tokens, columns, dtype=dtype, device="meta")
                    y = torch.empty(num_tokens, 4_096, dtype=dtype, device="meta")
                    for launch in multiplied(x, parts, y, tiles):
                        kind = f"{type.name}, {columns} columns, to {num_tokens} tokens"
                        yield f"{launch.kernel.__name__}, {kind}, {_name(dtype)}", launch
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                matrix = torch.empty(4_096, columns, dtype=dtype, device="meta")
                yield (
                    f"dequantise, {type.name}, {columns} columns, {_name(dtype)}",
                    dequantised(parts, matrix),
                )


def row_launches() -> Iterator[tuple[str, Launch]]:
    """Of Llama 2's and Llama 3's 8B and 70B; also with the norms and gates of a Gemma."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for hidden, ffn in ((4_096, 11_008), (4_096, 14_336), (8_192, 28_672)):
            x, weight = torch.empty(8, hidden, dtype=dtype, device="meta"), torch.empty(hidden, device="meta")
            gate_up = torch.empty(8, 2 * ffn, dtype=dtype, device="meta")
            y = torch.empty(8, ffn, dtype=dtype, device="meta")
            if ffn != 14_336:
                yield f"normalise, {hidden} columns, {_name(dtype)}", normalising(x, weight, x, 1e-5)
                for name, post_weight in (("add", None), ("normalise_and_add", weight)):
                    added = adding(x, x, weight, x, x, 1e-5, 1.0, post_weight)
                    yield f"{name}_and_normalise, {hidden} columns, {_name(dtype)}", added
            for activation in ACTIVATION_NUMBERS:
                gated = gating(gate_up, y, activation)
                yield f"gate by {activation}, {ffn} columns, {_name(dtype)}", gated
        for heads, kv_heads, head_dim, _, _ in ATTENTIONS:
            qkv = torch.empty(8, heads + 2 * kv_heads, head_dim, dtype=dtype, device="meta")
            angles = torch.empty(8, 1, head_dim, device="meta")
            cells = torch.empty(8, dtype=torch.int64, device="meta")
            cached = torch.empty(2, kv_heads, 4_096, PAGE_TOKENS, head_dim, dtype=dtype, device="meta")
            kind = f"{heads} heads, {kv_heads} kv, {head_dim}, {_name(dtype)}"
            norm = TriedNorm(torch.empty(heads + kv_heads, head_dim, device="meta"), 1e-5)
            yield f"turn_and_keep, {kind}", turning(qkv, angles, angles, cached, cells)
            yield f"normalise_turn_and_keep, {kind}", turning(qkv, angles, angles, cached, cells, norm)


def compiled(target: Target, kind: str = "") -> Iterator[dict[str, str | int | float]]:
    """All kernels whose names end so, with what each takes on a kind of card."""
    tiles = HOPPER_TILES if target is HOPPER else TILES
    for name, launch in (*product_launches(tiles), *attention_launches(), *row_launches()):
        if not name.endswith(kind):
            continue
        made = Compiled.of(launch, target)
        facts = {"target": target.name, "kernel": name, **asdict(made)}
        if name.startswith("multiply"):
            facts["instructions_a_weight"] = instructions_a_weight(launch, made)
        yield facts


def instructions_a_weight(launch: Launch, made: Compiled) -> float:
    """How many instructions of a loop unpack and multiply one weight, in each of 32 lanes."""
    columns = launch.constants["BLOCKS"] * launch.constants["BLOCK_VALUES"]
    values_a_lane: float = launch.constants["ROWS"] * columns / (32 * made.num_warps)
    return round(made.loop_instructions / values_a_lane, 2)


def complaint(kernel: Mapping[str, Any], target: Target) -> str:
    """What a kernel lacks on a kind of card; empty if nothing."""
    lacks = {
        "spills registers": kernel["spilled_bytes"] > most_spilled(kernel["kernel"]),
        "needs too much shared memory": kernel["shared_bytes"] > target.program_shared_bytes,
        "has no program at once": kernel["programs"] < 1,
        "unpacks too slowly": kernel.get("instructions_a_weight", 0) > most_instructions(kernel["kernel"]),
        "does without tensor cores": not kernel["tensor_products"]
        and _multiplies(kernel["kernel"], "attend_", "multiply,"),
        "loads in small pieces": not kernel["wide_loads"]
        and _multiplies(kernel["kernel"], "attend_", "multiply"),
    }
    return ", ".join(name for name, is_so in lacks.items() if is_so)


def most_spilled(name: str) -> int:
    return MAX_SPILLED_BYTES if name.startswith("multiply,") and "to 64 tokens" in name else 0


def most_instructions(name: str) -> float:
    """What a product may take for a weight. In rows that end within a tile each column is asked for."""
    return (14 if "Q6_K" in name else 10) + (0 if "4096 columns" in name else 0.5)


def _multiplies(name: str, *kinds: str) -> bool:
    return name.startswith(kinds) and "float32" not in name


def check(names: list[str]) -> int:
    """Print what spills, or lacks room, on these kinds of cards, else on all, and return the exit code."""
    num_kernels, spilling, bad = 0, list[str](), list[str]()
    targets = [one for one in TARGETS if one.name in names] or list(TARGETS)
    for target in targets:
        for kernel in compiled(target, " bfloat16" if names else ""):
            num_kernels += 1
            if spilled_bytes := kernel["spilled_bytes"]:
                spilling.append(f"{target.name}: {kernel['kernel']} spills {spilled_bytes} bytes a thread")
            if found := complaint(kernel, target):
                bad.append(f"{target.name}: {kernel['kernel']} {found}")
    print(
        *spilling,
        *bad,
        f"{num_kernels} GPU kernels compiled for {', '.join(one.name for one in targets)}",
        sep="\n",
    )
    return int(bool(bad))


def measure(_: NoPlan) -> Iterator[Table]:
    kernels = {target: list(compiled(target)) for target in TARGETS}
    rows = [_most(target, found) for target, found in kernels.items()]
    yield Table(rows, f"All kernels, by triton {triton.__version__}")
    yield Table(_products(kernels), "Instructions a weight in a lane (registers)")


def _most(target: Target, kernels: list[dict[str, Any]]) -> Row:
    """What any kernel takes at most on a kind of card."""
    most = [max(int(one[fact]) for one in kernels) for fact in ("registers", "spilled_bytes", "shared_bytes")]
    heads = ("most registers", "spilled bytes", "most shared bytes")
    named = dict(zip(heads, most, strict=True))
    return {"card": target.name, "kernels": len(kernels), **named, "of": target.program_shared_bytes}


#: In the names of products whose rows fill their tiles.
WHOLE = " 4096 columns"


def _products(kernels: Mapping[Target, list[dict[str, Any]]]) -> list[dict[str, str]]:
    """Instructions a weight and registers of each product of whole tiles in bfloat16, by kind of card."""
    found: dict[str, dict[str, str]] = {}
    for target, of_card in kernels.items():
        for one in of_card:
            if (
                one["kernel"].startswith("multiply")
                and one["kernel"].endswith(" bfloat16")
                and WHOLE in one["kernel"]
            ):
                name = one["kernel"].removesuffix(", bfloat16")
                row = found.setdefault(name, {"product": name})
                row[target.name] = f"{one['instructions_a_weight']:.1f} ({one['registers']})"
    return list(found.values())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


BENCHMARK = Benchmark("gpu_kernels", __doc__, NoPlan(), measure)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(sys.argv[2:]))
    main(BENCHMARK)
