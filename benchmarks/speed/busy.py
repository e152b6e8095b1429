"""What becomes of a step while other processes are busy on the same cores."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.speed.contender import Contender

LENGTHS, STEPS = (128,) * 8, 5
NUM_BUSY = (0, 1, 2)

ENDLESS = "while True: pass"


def beside_busy(path: Path, contenders: Sequence[Contender], threads: int) -> list[dict[str, Any]]:
    """The median step of 8 rows of each contender, alone and beside one and two processes that never wait."""
    rows = []
    for contender in contenders:
        if not contender.loads_as_users_do:
            continue
        with contender.start(path, threads) as running:
            running.decode_s(LENGTHS, 1)
            steps_s = dict[str, float | None]()
            for count in NUM_BUSY:
                with busy_processes(count):
                    steps_s[str(count)] = running.decode_s(LENGTHS, STEPS)
        rows.append({"contender": contender.name, "step_s": steps_s})
    return rows


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", ENDLESS])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
