"""What this process may use of its machine or container: memory in all, and cores for its threads."""

import os
import re
from math import inf
from pathlib import Path

from llama_herd.worker.loading.neighbours import PlanNotes
from llama_herd.worker.settings import WorkerSettings

#: Where Linux reports the machine's memory, and the limit of a container (cgroup v2).
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")

#: What is mapped into this process, where the system tells.
MAPS = Path("/proc/self/maps")

#: GCC's, Clang's and Intel's, also as wheels rename them: `libgomp-6a29c32d.so.1.0.0`.
RUNTIME = re.compile(r"lib(?:g|i)?omp\d?(?:-\w+)?\.so")


def free_bytes(device: str) -> int:
    """Free memory of a GPU; for `cpu` that of the machine, or of the container if it has less.

    Memory that other workers here have planned counts as taken, whether they have touched it or not.
    """
    notes = PlanNotes(device_key(device))
    if device != "cpu":
        import torch  # a GPU is asked through it, a CPU without

        free, total = torch.cuda.mem_get_info(device)
        return max(0, min(free, total - sum(notes.others().values())))
    untouched = sum(max(0, planned - resident_bytes(pid)) for pid, planned in notes.others().items())
    return max(0, machine_bytes() + resident_bytes("self") - untouched)


def total_bytes(device: str, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Memory of a GPU; for `cpu` that of the machine, or the limit of the container if that is less."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    limit_path = cgroup / "memory.max"
    limit = limit_path.read_text().strip() if limit_path.exists() else "max"
    total = 1024 * _number(meminfo, "MemTotal:")
    return total if limit == "max" else min(total, int(limit))


def machine_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes that the machine has left, or the container if it has less.

    Memory that only caches files counts as free.
    """
    available = 1024 * _number(meminfo, "MemAvailable:")
    limit_path = cgroup / "memory.max"
    limit = limit_path.read_text().strip() if limit_path.exists() else "max"
    left = inf if limit == "max" else int(limit) - _number(cgroup / "memory.stat", "anon")
    return max(0, int(min(available, left)))


def resident_bytes(pid: int | str) -> int:
    """Memory of a process that no file backs; 0 when the process is gone."""
    try:
        return 1024 * _number(PROC / str(pid) / "status", "RssAnon:")
    except (OSError, StopIteration):
        return 0


def device_key(device: str) -> str:
    """A name of the device that is the same in all processes of this machine."""
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def num_threads(settings: WorkerSettings) -> int:
    """HERD_THREADS, at most the cores that this process may use; absent: one less than these.

    Native threads wait for each other awake: one without a core of its own holds up all others.
    """
    cores = num_cores()
    return min(settings.threads or max(1, cores - 1), cores)


def num_cores(cgroup: Path = CGROUP) -> int:
    """The cores that this process may run on, or whole cores of its container's limit if these are fewer."""
    num_cores = len(os.sched_getaffinity(0))
    limit_path = cgroup / "cpu.max"
    quota_us, _, period_us = limit_path.read_text().partition(" ") if limit_path.exists() else ("max", "", "")
    return num_cores if quota_us == "max" else max(1, min(num_cores, int(quota_us) // int(period_us)))


def complaint_of_threads(settings: WorkerSettings) -> str:
    """Say why HERD_THREADS is not what this machine takes; empty if it is."""
    cores = num_cores()
    if settings.threads <= cores:
        return ""
    return f"HERD_THREADS={settings.threads} is more than this process has cores, so it takes {cores}"


def openmp_runtimes(maps: Path = MAPS) -> list[str]:
    """The files of all OpenMP runtimes in this process, by name. torch brings one.

    A package may bring one that nobody asked for: gguf loads sentencepiece where that is installed.
    """
    if not maps.exists():
        return []
    lines = maps.read_text().splitlines()
    files = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(file for file in files if RUNTIME.match(os.path.basename(file)))


def _number(path: Path, name: str) -> int:
    """The number after a name, in a file with one name per line."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
