"""What becomes of a step while other processes are busy on the same cores."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.processes import process
from benchmarks.report import Cell as Figure, Row
from benchmarks.speed.cells import Cell
from benchmarks.speed.contender import Contender

CELL, STEPS = Cell("8 rows", 8, (128,) * 8), 5
NUM_BUSY = (0, 1, 2)


def beside_busy(path: Path, contenders: Sequence[Contender], threads: int) -> Iterator[Row]:
    """The median step of 8 rows of each contender, alone and beside one and two processes that never wait."""
    for contender in contenders:
        if not contender.loads_as_users_do:
            continue
        row: dict[str, Figure] = {"ms a step": contender.name}
        with contender.start(path, threads, [CELL]) as running:
            running.seconds(CELL, 1)
            for count in NUM_BUSY:
                with ExitStack() as stack:
                    for _ in range(count):
                        stack.enter_context(process("-c", "while True: pass"))
                    step_s = running.seconds(CELL, STEPS)
                row[f"beside {count} busy processes"] = "-" if step_s is None else 1000 * step_s
        yield row
