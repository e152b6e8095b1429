"""Each GPU kernel alone: right against float64 at six shapes, and how fast at those of a 7B model.

A step takes one kernel. What does not compile, computes wrong or kills the context costs the others nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from gguf import GGMLQuantizationType as GGMLType
from torch import Tensor

from llama_herd.model.attention_inputs import Scoring, Seen
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.kernels.elementwise import ACTIVATION_NUMBERS, RowKernels
from llama_herd.model.kernels.exact import attends_right, exact_gate, exact_norm, is_rounded, multiplies_right
from llama_herd.model.kernels.rotation import HeadNorm, RotationKernel
from llama_herd.model.kernels.trials import TriedNorm
from llama_herd.model.pages import PAGE_TOKENS, pages_for

#: Runs that are timed; their median counts.
NUM_RUNS = 30
#: Rows of attention that are checked: float64 over all of them takes longer than the rest.
NUM_CHECKED = 4
#: Data that is written between runs, so that none finds its inputs in the L2 cache.
FLUSH_BYTES = 1 << 28
Facts = dict[str, Any]


class Case(NamedTuple):
    """A computation by a kernel, whether a result of it is right, and the fewest bytes that it moves."""

    label: str
    compute: Callable[[], Tensor]
    is_right: Callable[[Tensor], bool]
    num_bytes: int


def cases(name: str, device: torch.device, is_small: bool) -> Iterator[Case]:
    """The cases of one kernel; `is_small` where an interpreter runs it."""
    make = KERNELS[name]
    yield from make(device, is_small)


def measured(case: Case, device: torch.device, is_timed: bool) -> Facts:
    """What a case came to; its time only where the device does nothing else."""
    facts: Facts = {
        "case": case.label,
        "is_right": case.is_right(case.compute()),
        "bytes": case.num_bytes,
    }
    if is_timed:
        seconds = _median_s(case.compute, device)
        facts |= {"us": 1e6 * seconds, "GB_s": case.num_bytes / seconds / 1e9}
    return facts


def _median_s(run: Callable[[], Tensor], device: torch.device) -> float:
    """By events on the device. A launch from Python takes longer than some kernels: a graph hides it."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream(device).wait_stream(side)
    with torch.cuda.graph(graph, stream=side):  # where the libraries have their workspaces now
        run()
    times: list[float] = []
    for _ in range(NUM_RUNS):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[NUM_RUNS // 2]


def _type(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The interpreter's bfloat16 is wrong."""
    return torch.float16 if device.type == "cpu" and dtype is torch.bfloat16 else dtype


def _attention(
    heads: tuple[int, int, int], dtype: torch.dtype, window: int = 0, cap: float = 0.0
) -> Callable[[torch.device, bool], Iterator[Case]]:
    def make(device: torch.device, is_small: bool) -> Iterator[Case]:
        shapes = (
            [(1, 70), (3, 130), (5, 65)]
            if is_small
            else [(1, 512), (8, 1_024), (64, 512), (64, 2_048), (256, 512), (3, 4_096)]
        )
        for num_rows, length in shapes:
            yield from _attention_cases(device, heads, _type(dtype, device), num_rows, length, window, cap)

    return make


def _attention_cases(
    device: torch.device,
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    num_rows: int,
    length: int,
    window: int,
    cap: float,
) -> Iterator[Case]:
    from llama_herd.model.kernels.gpu.attention import TritonAttention, launches

    H, K, D = heads
    q = torch.randn(num_rows, H, D, device=device).to(dtype)
    pages = pages_for(length)
    cached = torch.randn(2, K, num_rows * pages, PAGE_TOKENS, D, device=device, dtype=dtype)
    rows = torch.arange(num_rows, device=device)
    order = torch.randperm(num_rows * pages, device=device)
    seen = Seen(rows, torch.full_like(rows, length), rows * pages, order)
    scoring, y = Scoring(window=window, cap=cap), torch.full_like(q, torch.nan)
    processors = (
        132 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count
    )
    splits = {1, TritonAttention(processors).num_splits(num_rows, K, num_rows * pages)}
    keys = min(window, length) if window else length
    some = slice(0, NUM_CHECKED)
    part = Seen(rows[some], seen.num_keys[some], seen.tables[some], seen.pages)

    def is_right(y: Tensor) -> bool:
        return attends_right(y[some], q, cached, part, scoring)

    def attended(num_splits: int) -> Tensor:
        for launch in launches(q, cached, seen, y, num_splits, scoring):
            launch()
        return y

    num_bytes = 2 * num_rows * keys * K * D * dtype.itemsize
    for num_splits in sorted(splits):
        label = f"{num_rows} rows of {length}, {num_splits} parts"
        yield Case(label, partial(attended, num_splits), is_right, num_bytes)


def _products(type: GGMLType) -> Callable[[torch.device, bool], Iterator[Case]]:
    def make(device: torch.device, is_small: bool) -> Iterator[Case]:
        from llama_herd.model.kernels.gpu.products import product
        from llama_herd.model.kernels.gpu.triton_kernels import random_parts

        sizes = [(41, 512)] if is_small else [(4_096, 4_096), (12_288, 4_096), (4_096, 11_008)]
        for num_rows, columns in sizes:
            parts = random_parts(type, num_rows, columns, device)
            matrix = dequantize(parts.blocks(), type)
            for num_tokens in (1, 16, 48, 65) if is_small else (1, 4, 16, 32, 48, 64, 65, 96):
                x = torch.randn(num_tokens, columns, device=device).to(_type(torch.bfloat16, device))
                yield Case(
                    f"{num_tokens} tokens, {num_rows} x {columns}",
                    partial(product, x, parts),
                    partial(multiplies_right, x=x, matrix=matrix),
                    parts.num_bytes + 2 * num_tokens * (num_rows + columns),
                )

    return make


def _dequantising(type: GGMLType) -> Callable[[torch.device, bool], Iterator[Case]]:
    def make(device: torch.device, is_small: bool) -> Iterator[Case]:
        from llama_herd.model.kernels.gpu.products import values
        from llama_herd.model.kernels.gpu.triton_kernels import random_parts

        for num_rows, columns in [(41, 512)] if is_small else [(4_096, 4_096), (11_008, 4_096)]:
            parts = random_parts(type, num_rows, columns, device)
            exact = dequantize(parts.blocks(), type).half()
            num_bytes = parts.num_bytes + 2 * num_rows * columns
            yield Case(
                f"{num_rows} x {columns}", partial(values, parts, torch.float16), exact.equal, num_bytes
            )

    return make


def _rows(device: torch.device, is_small: bool) -> Iterator[Case]:
    from llama_herd.model.kernels.gpu.rows import TritonElementwise

    kernels, dtype = TritonElementwise(), _type(torch.bfloat16, device)
    for num_tokens in (1, 64) if is_small else (1, 8, 64, 256):
        hidden, ffn = (96, 80) if is_small else (4_096, 11_008)
        x, added = (torch.randn(num_tokens, hidden, device=device).to(dtype) for _ in range(2))
        weight = torch.randn(hidden, device=device)
        gate_up = torch.randn(num_tokens, 2 * ffn, device=device).to(dtype)
        # A sum's own rounding may fall either way where what is added was normalised in float32.
        own_total, _ = kernels.norm_of_sum(x, added, weight, 1e-5, 1.0, weight)
        for kind, post_weight, total in (("sum", None, x + added), ("norm, sum", weight, own_total)):
            add = partial(_normed_sum, kernels, x, added, weight, post_weight)
            normed = partial(is_rounded, exact=exact_norm(total, weight, 1e-5))
            yield Case(f"{kind} and norm of {num_tokens} x {hidden}", add, normed, 8 * num_tokens * hidden)
        for activation in ACTIVATION_NUMBERS:
            gated = partial(is_rounded, exact=exact_gate(gate_up, activation))
            run = partial(kernels.gate, gate_up, activation)
            yield Case(f"{activation} gate of {num_tokens} x {ffn}", run, gated, 6 * num_tokens * ffn)


def _normed_sum(
    kernels: RowKernels, x: Tensor, added: Tensor, weight: Tensor, post_weight: Tensor | None
) -> Tensor:
    _, normed = kernels.norm_of_sum(x, added, weight, 1e-5, 1.0, post_weight)
    return normed


def _rotation(device: torch.device, is_small: bool) -> Iterator[Case]:
    from llama_herd.model.kernels.gpu.rows import TritonRotation

    (H, K, D), dtype = (32, 32, 128), _type(torch.bfloat16, device)
    for num_tokens in (1, 5) if is_small else (1, 8, 64, 256):
        qkv = torch.randn(num_tokens, H + 2 * K, D, device=device).to(dtype)
        angles = torch.rand(num_tokens, 1, D, device=device)
        cached = torch.zeros(2, K, num_tokens, PAGE_TOKENS, D, dtype=dtype, device=device)
        cells = torch.arange(num_tokens, device=device) * PAGE_TOKENS
        given = qkv, angles.cos(), angles.sin(), cached, cells
        for kind, norm in (("", None), (" normalised", TriedNorm(torch.rand(H + K, D, device=device), 1e-5))):
            keys = qkv[:, H : H + K].double()
            if norm is not None:
                keys = exact_norm(keys, norm.weight[H:], norm.eps)
            exact = keys * angles.cos() + keys.roll(D // 2, dims=-1) * angles.sin()
            turn = partial(_turned, TritonRotation(), *given, norm)
            is_right = partial(_is_turned, cells=cells, exact=exact)
            yield Case(f"{num_tokens} tokens{kind}", turn, is_right, 2 * dtype.itemsize * qkv.numel())


def _turned(
    kernel: RotationKernel,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cached: Tensor,
    cells: Tensor,
    norm: HeadNorm | None,
) -> Tensor:
    kernel(qkv, cos, sin, cached, cells, norm)
    return cached


def _is_turned(cached: Tensor, cells: Tensor, exact: Tensor) -> bool:
    keys = cached[0].flatten(1, 2)[:, cells].transpose(0, 1)
    return is_rounded(keys, exact, size=1e4)


#: The kernels, those first that most depends on.
KERNELS: Mapping[str, Callable[[torch.device, bool], Iterator[Case]]] = {
    "attention": _attention((32, 32, 128), torch.bfloat16),
    "Q8_0": _products(GGMLType.Q8_0),
    "Q4_0": _products(GGMLType.Q4_0),
    "rows": _rows,
    "rotation": _rotation,
    "grouped attention": _attention((32, 8, 128), torch.bfloat16),
    "Q4_K": _products(GGMLType.Q4_K),
    "Q6_K": _products(GGMLType.Q6_K),
    "values of Q8_0": _dequantising(GGMLType.Q8_0),
    "values of Q4_K": _dequantising(GGMLType.Q4_K),
    "windowed attention": _attention((16, 8, 256), torch.bfloat16, window=1_000, cap=50.0),
    "float32 attention": _attention((32, 32, 128), torch.float32),
}
