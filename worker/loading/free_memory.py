"""How much memory this process may still take."""

from math import inf
from pathlib import Path

import torch

#: Where Linux says what the machine has, and what a container may take of it (cgroup v2).
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: str, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Of a GPU; for `cpu` of the machine, or of the container where that has less.

    What only caches files counts as free, since it makes way.
    """
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    machine_bytes = 1024 * _number(meminfo, "MemAvailable:")
    limit_path = cgroup / "memory.max"
    limit = limit_path.read_text().strip() if limit_path.exists() else "max"
    left_bytes = inf if limit == "max" else int(limit) - _number(cgroup / "memory.stat", "anon")
    return max(0, int(min(machine_bytes, left_bytes)))


def _number(path: Path, name: str) -> int:
    """The number behind a name, in a file of one a line."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
