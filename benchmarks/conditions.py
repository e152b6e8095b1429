"""The conditions of a measurement: without them a number says nothing."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "celery", "kombu", "redis")


def conditions() -> dict[str, Any]:
    """Commit, machine, versions, threads and load, as they are now."""
    return {
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def read_bandwidth(num_bytes: int = 1 << 29) -> float:
    """Bytes a second that this machine reads from memory: the best of five sums over half a GiB."""
    values = torch.ones(num_bytes // 4)
    seconds = []
    for _ in range(5):
        started = perf_counter()
        values.sum()
        seconds.append(perf_counter() - started)
    return num_bytes / min(seconds)


def _commit() -> str:
    folder = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True
    )
    return found.stdout.strip() or "unknown"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
