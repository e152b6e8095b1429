"""The conditions of a measurement: without them a number says nothing."""

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch

PACKAGES = ("torch", "transformers", "celery", "kombu", "redis", "hiredis", "uvicorn")


VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}


@dataclass(frozen=True)
class Processor:
    """As /proc/cpuinfo knows it."""

    facts: dict[str, str]

    @classmethod
    def here(cls) -> Self:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        return cls({name.strip(): value.strip() for name, _, value in (one.partition(":") for one in lines)})

    @property
    def name(self) -> str:
        """Vendor, family and model, such as amd-26-2."""
        vendor = self.facts.get("vendor_id", "unknown")
        parts = (self.facts.get("cpu family", ""), self.facts.get("model", ""))
        return "-".join(filter(None, (VENDORS.get(vendor, vendor.lower()), *parts)))

    @cached_property
    def flags(self) -> frozenset[str]:
        return frozenset(self.facts.get("flags", "").split())

    @property
    def words(self) -> str:
        return f"{self.name}, {'with' if 'amx_bf16' in self.flags else 'without'} AMX"


def conditions() -> dict[str, Any]:
    """Commit, machine, versions, threads and load, as they are now."""
    processor = Processor.here()
    return {
        "commit": _commit(),
        "cpu": processor.facts.get("model name", platform.processor()),
        "processor": processor.words,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: found for name in PACKAGES if (found := installed(name))},
    }


def installed(package: str) -> str:
    """Its version; empty where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


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
