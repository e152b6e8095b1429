"""What this process may use of its machine, container or service: memory, and cores for its threads."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from llama_herd.worker.loading.neighbours import PlanNotes
from llama_herd.worker.settings import WorkerSettings

#: Where Linux reports the machine's memory, and the limits of groups of processes (cgroup v2).
MEMINFO = Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")
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


def total_bytes(device: str, meminfo: Path = MEMINFO, groups: Sequence[Path] | None = None) -> int:
    """Memory of a GPU; for `cpu` that of the machine, or the least limit of our groups if that is less."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    limits = (int(limit) for _, (limit,) in _limits("memory.max", groups))
    return min((1024 * _number(meminfo, "MemTotal:"), *limits))


def machine_bytes(meminfo: Path = MEMINFO, groups: Sequence[Path] | None = None) -> int:
    """Bytes that the machine has left, or one of our groups if it has less.

    Memory that only caches files counts as free.
    """
    limits = _limits("memory.max", groups)
    left = (int(limit) - _number(group / "memory.stat", "anon") for group, (limit,) in limits)
    return max(0, min((1024 * _number(meminfo, "MemAvailable:"), *left)))


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


def num_cores(groups: Sequence[Path] | None = None) -> int:
    """The cores that this process may run on, or whole cores of its groups' least limit if it is less."""
    limits = _limits("cpu.max", groups)
    allowed = (int(quota_us) // int(period_us) for _, (quota_us, period_us) in limits)
    return max(1, min((len(os.sched_getaffinity(0)), *allowed)))


def own_groups(root: Path = CGROUPS, own: Path = PROC / "self" / "cgroup") -> tuple[Path, ...]:
    """The group of this process and those above it, whose limits all hold.

    The topmost is that of the machine, or of the container; a service of systemd has its own below it.
    """
    lines = own.read_text().splitlines() if own.exists() else []
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    return tuple(one for one in (root / path, *(root / path).parents) if one.is_relative_to(root))


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


def _limits(name: str, groups: Sequence[Path] | None) -> Iterator[tuple[Path, list[str]]]:
    """The groups that limit something, and what the file of this name says; None: those of this process."""
    for group in own_groups() if groups is None else groups:
        said = (group / name).read_text().split() if (group / name).exists() else ["max"]
        if said[0] != "max":
            yield group, said
