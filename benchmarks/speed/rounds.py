"""Contenders on one file, taking turns."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from time import perf_counter

from benchmarks.floors import Floors
from benchmarks.speed.contender import Contender, Running
from benchmarks.speed.machine import busy_s, cpu_s_of


@dataclass(frozen=True)
class Cell:
    """One thing that is timed: a prompt's prefill, or a step of rows with so many tokens in the cache."""

    name: str
    num_tokens: int  # that one request computes, or one step
    lengths: tuple[int, ...] = ()

    def seconds(self, running: Running, steps: int) -> float | None:
        return running.decode_s(self.lengths, steps) if self.lengths else running.prefill_s(self.num_tokens)

    def floor_s(self, floors: Floors) -> float:
        if not self.lengths:
            return floors.prefill_s(1, self.num_tokens)
        return floors.decode_s(len(self.lengths), mean(self.lengths))


CELLS = (
    Cell("prefill 512", 512),
    Cell("1 row", 1, (128,)),
    Cell("8 rows", 8, (128,) * 8),
    Cell("32 rows", 32, (128,) * 32),
    Cell("32 mixed", 32, tuple(range(16, 496, 15))),
)


@dataclass
class Outcome:
    """What one contender did with one file."""

    contender: str
    facts: dict[str, object] = field(default_factory=dict)
    start_s: float | None = None  # from the start of the process to its first token
    peak_bytes: int | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by cell, one a round
    others_s: float = 0.0  # processor time that anything else took meanwhile
    timed_s: float = 0.0
    death: str = ""

    @property
    def others_cores(self) -> float:
        """That anything else kept busy, over all turns: the system counts in 10 ms, a turn may be less."""
        return max(0.0, self.others_s / self.timed_s) if self.timed_s else 0.0

    def tokens_per_s(self, cell: Cell) -> float | None:
        """The median of the rounds."""
        return cell.num_tokens / median(times) if (times := self.seconds.get(cell.name)) else None


def measure_file(
    path: Path, contenders: Sequence[Contender], threads: int, rounds: int, steps: int
) -> list[Outcome]:
    """Each contender loads the file, then all do each cell in turn, `rounds` times."""
    with ExitStack() as stack:
        running = [stack.enter_context(contender.start(path, threads)) for contender in contenders]
        outcomes = [Outcome(one.contender.name, one.facts) for one in running]
        for cell in filter(lambda cell: cell.lengths, CELLS):
            for one in running:  # fills caches and warms up, by prompts too
                cell.seconds(one, 1)
        for cell in [cell for _ in range(rounds) for cell in CELLS]:
            for one, outcome in zip(running, outcomes, strict=True):
                _time(cell, one, outcome, steps)
        for one, outcome in zip(running, outcomes, strict=True):
            outcome.death = one.death
            if one.contender.loads_as_users_do:
                outcome.start_s, outcome.peak_bytes = one.start_s, one.peak_bytes
    return outcomes


def _time(cell: Cell, running: Running, outcome: Outcome, steps: int) -> None:
    started_s, busy_before_s, own_before_s = perf_counter(), busy_s(), _own_cpu_s(running)
    seconds = cell.seconds(running, steps)
    if seconds is None:
        return
    outcome.others_s += busy_s() - busy_before_s - (_own_cpu_s(running) - own_before_s)
    outcome.timed_s += perf_counter() - started_s
    outcome.seconds.setdefault(cell.name, []).append(seconds)


def _own_cpu_s(running: Running) -> float:
    return running.cpu_s() + cpu_s_of(os.getpid())
