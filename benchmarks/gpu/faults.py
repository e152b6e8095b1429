"""Steps that fail in every way that a step can, to rehearse what a run does then."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping
from time import sleep

from benchmarks.gpu.journal import Journal


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
