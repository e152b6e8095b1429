"""Meter: what a piece of work takes of the clock, of this process, of Redis and of another process."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from time import perf_counter, process_time
from typing import Any

from benchmarks.process_figures import cpu_s


@dataclass(frozen=True)
class Spent:
    """All that was spent up to a moment, or between two."""

    wall_s: float
    own_cpu_s: float
    redis_cpu_s: float = 0.0
    commands: float = 0.0  # those of scripts included
    num_bytes: float = 0.0  # to Redis and from it
    process_cpu_s: float = 0.0

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(*(now - then for now, then in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Reads of a Redis, and of another process, where they are given."""

    def __init__(self, redis: Any = None, pid: int | None = None) -> None:
        self._redis = redis
        self._pid = pid
        self._began = self.read()

    def read(self) -> Spent:
        of_redis = 0.0, 0.0, 0.0
        if self._redis is not None:
            found = self._redis.info()
            cpu = found["used_cpu_user"] + found["used_cpu_sys"]
            num_bytes = found["total_net_input_bytes"] + found["total_net_output_bytes"]
            of_redis = float(cpu), float(found["total_commands_processed"]), float(num_bytes)
        of_process = 0.0 if self._pid is None else cpu_s(self._pid)
        return Spent(perf_counter(), process_time(), *of_redis, of_process)

    def so_far(self) -> Spent:
        """Since this meter was made."""
        return self.read() - self._began

    def spent(self, act: Callable[[], object]) -> Spent:
        """On one act."""
        before = self.read()
        act()
        return self.read() - before
