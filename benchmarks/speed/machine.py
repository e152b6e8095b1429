"""What the machine can do at best, and what else it is doing meanwhile."""

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.conditions import read_bandwidth
from llama_herd.model.config import LlamaConfig

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

#: The matrices of the matmul peak, and how often they are multiplied.
_SIZE, _ROUNDS = 2_048, 5


@dataclass(frozen=True)
class Ceilings:
    """Bytes that are read from memory in a second, and bfloat16 operations of torch's matmul."""

    bytes_per_s: float
    flops: float

    @classmethod
    def measure(cls) -> "Ceilings":
        return cls(read_bandwidth(), _matmul_flops())

    def step_s(self, config: LlamaConfig, file_bytes: int, num_tokens: int) -> float:
        """Least seconds of a forward of so many tokens: weights are read once, each token is multiplied."""
        flops = 2.0 * _num_multiplied(config) * num_tokens
        return max(file_bytes / self.bytes_per_s, flops / self.flops)


def busy_s() -> float:
    """Processor time that everything on this machine has used so far."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def cpu_s_of(pid: int) -> float:
    """Processor time that a process with all its threads has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _matmul_flops() -> float:
    left = torch.randn(_SIZE, _SIZE).bfloat16()
    seconds = []
    for _ in range(_ROUNDS):
        started_s = perf_counter()
        left @ left
        seconds.append(perf_counter() - started_s)
    return 2.0 * _SIZE**3 / min(seconds)


def _num_multiplied(config: LlamaConfig) -> int:
    """Weights that each token is multiplied by: all but embedding and norms."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    attention = config.hidden_size * (heads + config.num_heads * config.head_dim)
    mlp = 3 * config.hidden_size * config.ffn_size
    return config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size
