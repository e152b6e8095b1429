"""What the machine can do at best, and what else it is doing meanwhile."""

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.conditions import read_bandwidth
from benchmarks.floors import Floors
from benchmarks.speed.files import RandomFile

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

#: The matrices of the matmul peak, and how often they are multiplied.
_SIZE, _ROUNDS = 2_048, 5


@dataclass(frozen=True)
class Ceilings:
    """Bytes that are read from memory in a second, and bfloat16 operations of torch's matmul."""

    bytes_per_s: float
    flop_per_s: float

    @classmethod
    def measure(cls) -> "Ceilings":
        return cls(read_bandwidth(), _matmul_flop_per_s())

    def floors(self, file: RandomFile) -> Floors:
        return Floors(file.config, file.format, self.bytes_per_s, self.flop_per_s)


def busy_s() -> float:
    """Processor time that everything on this machine has used so far."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def cpu_s_of(pid: int) -> float:
    """Processor time that a process with all its threads has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _matmul_flop_per_s() -> float:
    left = torch.randn(_SIZE, _SIZE).bfloat16()
    seconds = []
    for _ in range(_ROUNDS):
        started_s = perf_counter()
        left @ left
        seconds.append(perf_counter() - started_s)
    return 2.0 * _SIZE**3 / min(seconds)
