"""What becomes of a step while other processes are busy on the same cores."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness import in_turns
from benchmarks.processes import process
from benchmarks.report import Row
from benchmarks.speed.cells import Cell
from benchmarks.speed.contender import Contender, Running

CELL, STEPS, ROUNDS = Cell("8 rows", 8, (128,) * 8), 5, 3
NUM_BUSY = (0, 1, 2)


def beside_busy(path: Path, contenders: Sequence[Contender], threads: int) -> Iterator[Row]:
    """The median step of 8 rows of each contender, alone and beside one and two processes that never wait."""
    for contender in contenders:
        if not contender.loads_as_users_do:
            continue
        with contender.start(path, threads, [CELL]) as running:
            running.seconds(CELL, 1)
            ways = {f"beside {count} busy processes": partial(step_ms, running, count) for count in NUM_BUSY}
            found = in_turns(ways, ROUNDS)
        steps = {name: [ms for ms in rounds if ms is not None] or "-" for name, rounds in found.items()}
        yield {"ms a step": contender.name, **steps}


def step_ms(running: Running, num_busy: int) -> float | None:
    """None of a process that has died."""
    with ExitStack() as stack:
        for _ in range(num_busy):
            stack.enter_context(process("-c", "while True: pass"))
        step_s = running.seconds(CELL, STEPS)
    return None if step_s is None else 1000 * step_s
