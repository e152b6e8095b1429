"""A run whose steps fail in every way that a step can; with a step's name, that step alone."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import sleep

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.step import Step
from benchmarks.gpu.unattended import Unattended, python


def hang(journal: Journal) -> None:
    """Never ends, and obeys no signal that can be ignored; a child in a session of its own neither."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    journal.add("fact", step="hang", child=child.pid)
    sleep(1_000)


def crash(journal: Journal) -> None:
    """Reads where nothing is, in the middle of a line of results."""
    with journal.path.open("a") as file:
        file.write('{"kind": "measurement", "workload": "W1", "va')
    ctypes.string_at(0)


def garbage(journal: Journal) -> None:
    """Prints bytes that are no text, and writes such lines into the results."""
    with journal.path.open("ab") as file:
        file.write(b"\xff\x00 no entry\n[1, 2]\nNaN\n")
    os.write(1, os.urandom(4_096))


def fail(journal: Journal) -> None:
    """Raises, after it has found something."""
    journal.add("fact", step="fail", found="before it failed")
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


FAULTS: Mapping[str, Callable[[Journal], None]] = {
    "hang": hang,
    "crash": crash,
    "garbage": garbage,
    "fail": fail,
}


def well(journal: Journal) -> None:
    journal.add("fact", step="well", found="something")


STEPS = [
    Step("hang", ("hang",), limit_s=3, least_s=1),
    Step("crash", ("crash",), limit_s=10, least_s=1),
    *(Step(name, (name,), limit_s=10, least_s=1, lane="one") for name in ("garbage", "fail")),
    Step("hang beside", ("hang",), limit_s=3, least_s=1, lane="other"),
    Step("well", ("well",), limit_s=30, least_s=1),
    Step("too long", ("hang",), limit_s=2_000, least_s=1_000),
]

if __name__ == "__main__":
    folder, *name = sys.argv[1:]
    journal = Journal(Path(folder))
    if name:
        {"well": well, **FAULTS}[name[0]](journal)
    else:
        Unattended(journal, Path(folder) / "log.txt", python(__file__, folder), 500).run(STEPS)
