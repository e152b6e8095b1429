"""Meter: what a piece of work takes of the clock, of this process and of Redis."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from time import perf_counter, process_time
from typing import Any


@dataclass(frozen=True)
class Spent:
    """All that was spent up to a moment, or between two."""

    wall_s: float
    own_cpu_s: float
    redis_cpu_s: float = 0.0
    commands: float = 0.0  # those of scripts included
    num_bytes: float = 0.0  # to Redis and from it

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(*(now - then for now, then in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Reads of a Redis where it is given."""

    def __init__(self, redis: Any = None) -> None:
        self._redis = redis

    def read(self) -> Spent:
        so_far = perf_counter(), process_time()
        if self._redis is None:
            return Spent(*so_far)
        found = self._redis.info()
        cpu = found["used_cpu_user"] + found["used_cpu_sys"]
        num_bytes = found["total_net_input_bytes"] + found["total_net_output_bytes"]
        return Spent(*so_far, cpu, found["total_commands_processed"], num_bytes)

    def spent(self, act: Callable[[], object]) -> Spent:
        """On one act."""
        before = self.read()
        act()
        return self.read() - before
