"""Contenders on one file, taking turns."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from benchmarks.process_figures import busy_s, cpu_s
from benchmarks.speed.cells import Cell
from benchmarks.speed.contender import Contender, Running

#: More cores than this that something else kept busy make a row doubtful.
QUIET_CORES = 0.1


@dataclass
class Outcome:
    """What one contender did with one file."""

    contender: str
    facts: dict[str, object] = field(default_factory=dict)
    start_s: float | None = None  # from the start of the process to its first token
    peak_bytes: int | None = None
    tokens_per_s: dict[str, list[float]] = field(default_factory=dict)  # by cell, one a round
    others_s: float = 0.0  # processor time that anything else took meanwhile
    timed_s: float = 0.0
    death: str = ""

    @property
    def note(self) -> str:
        """Of what it died; and how many cores anything else kept busy: the system counts in 10 ms."""
        cores = max(0.0, self.others_s / self.timed_s) if self.timed_s else 0.0
        noise = f"others took {cores:.1f} cores" if cores > QUIET_CORES else ""
        return ", ".join(filter(None, (self.death, noise)))

    def time(self, cell: Cell, running: Running, steps: int) -> None:
        started_s, busy_before_s, own_before_s = perf_counter(), busy_s(), _own_cpu_s(running)
        seconds = running.seconds(cell, steps)
        if seconds is None:
            return
        self.others_s += busy_s() - busy_before_s - (_own_cpu_s(running) - own_before_s)
        self.timed_s += perf_counter() - started_s
        self.tokens_per_s.setdefault(cell.name, []).append(cell.num_tokens / seconds)


def measure_file(
    path: Path,
    contenders: Sequence[Contender],
    threads: int,
    rounds: int,
    steps: int,
    cells: Sequence[Cell],
    once: Sequence[Cell] = (),
) -> list[Outcome]:
    """Each contender loads the file, then all do each cell in turn, `rounds` times; the long ones once."""
    with ExitStack() as stack:
        all_cells = [*cells, *once]
        running = [
            stack.enter_context(one.start(path, threads, [cell for cell in all_cells if one.takes(cell)]))
            for one in contenders
        ]
        outcomes = [Outcome(one.contender.name, one.facts) for one in running]
        for cell in filter(lambda cell: cell.lengths, cells):
            for one in running:  # fills caches and warms up, by prompts too
                if one.contender.takes(cell):
                    one.seconds(cell, 1)
        for cell in [*[cell for _ in range(rounds) for cell in cells], *once]:
            for one, outcome in zip(running, outcomes, strict=True):
                if one.contender.takes(cell):
                    outcome.time(cell, one, steps)
        for one, outcome in zip(running, outcomes, strict=True):
            outcome.death = one.death
            if one.contender.loads_as_users_do:
                outcome.start_s, outcome.peak_bytes = one.start_s, one.peak_bytes
    return outcomes


def _own_cpu_s(running: Running) -> float:
    return running.cpu_s() + cpu_s(os.getpid())
