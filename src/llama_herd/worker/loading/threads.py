"""How many threads a model's arithmetic gets on a CPU, and which OpenMP runtimes have others."""

import os
import re
from pathlib import Path

from llama_herd.worker.loading.free_memory import CGROUP
from llama_herd.worker.settings import WorkerSettings

#: What is mapped into this process, where the system tells.
MAPS = Path("/proc/self/maps")

#: GCC's, Clang's and Intel's, also as wheels rename them: `libgomp-6a29c32d.so.1.0.0`.
RUNTIME = re.compile(r"lib(?:g|i)?omp\d?(?:-\w+)?\.so")


def num_threads(settings: WorkerSettings) -> int:
    """HERD_THREADS, or one less than the cores that this process may use."""
    return settings.threads or max(1, num_cores() - 1)


def num_cores(cgroup: Path = CGROUP) -> int:
    """The cores that this process may run on, or whole cores of its container's limit if these are fewer."""
    num_cores = len(os.sched_getaffinity(0))
    limit_path = cgroup / "cpu.max"
    quota_us, _, period_us = limit_path.read_text().partition(" ") if limit_path.exists() else ("max", "", "")
    return num_cores if quota_us == "max" else max(1, min(num_cores, int(quota_us) // int(period_us)))


def complaint_of_threads(settings: WorkerSettings) -> str:
    """Say why HERD_THREADS is wrong on this machine; empty if it is not."""
    cores = num_cores()
    if settings.threads <= cores:
        return ""
    return f"HERD_THREADS={settings.threads} is more than the {cores} cores that this process may use"


def openmp_runtimes(maps: Path = MAPS) -> list[str]:
    """The files of all OpenMP runtimes in this process, by name. torch brings one.

    A package may bring one that nobody asked for: gguf loads sentencepiece where that is installed.
    """
    if not maps.exists():
        return []
    lines = maps.read_text().splitlines()
    files = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(file for file in files if RUNTIME.match(os.path.basename(file)))
