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


def conditions(commit: str = "") -> dict[str, Any]:
    """Commit, machine, versions, threads and load, as they are now.

    `commit` says which one it is where git cannot.
    """
    return {
        "commit": commit or _commit(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def gpu_conditions() -> dict[str, str]:
    """What nvidia-smi says about the first card that this process may use; nothing where there is none."""
    query = (
        "name",
        "driver_version",
        "memory.total",
        "clocks.sm",
        "clocks.mem",
        "clocks.max.sm",
        "power.limit",
    )
    command = ["nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv,noheader"]
    if listed := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={listed.split(',')[0]}")
    try:
        report = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in report.splitlines()[0].split(",")]
    return {f"gpu {name}": value for name, value in zip(query, values, strict=True)}


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
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
