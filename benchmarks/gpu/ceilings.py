"""Measures what a device can do at best, on random data: zeros would flatter it."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

#: Timed runs of each probe, after one that is not; the best counts.
NUM_RUNS = 10


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at best, as it was just measured."""

    copy_bytes_per_s: float  # from device memory to device memory, read and written bytes counted
    read_bytes_per_s: float  # a sum over device memory
    matmul_flop_per_s: float
    upload_bytes_per_s: float  # from pinned host memory
    init_s: float  # until a process's first tensor lies on the device

    @property
    def bytes_per_s(self) -> float:
        """What a floor goes by: the fastest way through memory that was seen."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)


def measure_ceilings(device: torch.device, probe_bytes: int, probe_size: int) -> Ceilings:
    """By copies of so many bytes, and products of matrices of so many rows and columns.

    Call it first in a process: it times the device's start, too.
    """
    started = perf_counter()
    torch.zeros(1, device=device)
    wait_for(device)
    init_s = perf_counter() - started
    values = torch.randn(probe_bytes // 4, device=device)
    return Ceilings(
        copy_bytes_per_s=_copy_bytes_per_s(values),
        read_bytes_per_s=values.nbytes / _best_s(device, values.sum),
        matmul_flop_per_s=_matmul_flop_per_s(device, probe_size),
        upload_bytes_per_s=_upload_bytes_per_s(values[: len(values) // 8]),
        init_s=init_s,
    )


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _copy_bytes_per_s(source: Tensor) -> float:
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best_s(source.device, lambda: target.copy_(source))


def _upload_bytes_per_s(target: Tensor) -> float:
    source = torch.randn(len(target), pin_memory=target.device.type == "cuda")
    return source.nbytes / _best_s(target.device, lambda: target.copy_(source, non_blocking=True))


def _matmul_flop_per_s(device: torch.device, size: int) -> float:
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / _best_s(device, lambda: a @ b)


def _best_s(device: torch.device, work: Callable[[], Tensor]) -> float:
    seconds = []
    for _ in range(1 + NUM_RUNS):
        wait_for(device)
        started = perf_counter()
        work()
        wait_for(device)
        seconds.append(perf_counter() - started)
    return min(seconds[1:])
