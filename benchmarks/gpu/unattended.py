"""An unattended run: steps, each a process of its own, all within a time of its own.

Whatever a step does, hang, crash or leave processes behind, it costs its own results and its own time only.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from time import monotonic, sleep

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.step import EXIT_NOT_HERE, NOT_HERE, OK, Step

#: How long a killed process may take to be gone. One that waits for its driver may never be.
LAST_WAIT_S = 3.0
#: From linux/prctl.h: orphans of our children become our own children.
PR_SET_CHILD_SUBREAPER = 36
#: What is shown of the output of a step that failed.
SHOWN_LINES, SHOWN_BYTES = 12, 3_000


@dataclass(frozen=True)
class Unattended:
    """Runs steps for `total_s` at most, and writes down how each ended; what they print goes into `log`.

    A lane has a log of its own beside it. All processes that are its children are ended after each step that
    runs alone, and after all lanes: it must be all that its process does.
    """

    journal: Journal
    log: Path
    command: Sequence[str]  # that the arguments of a step are added to
    total_s: float
    _started_s: float = field(default_factory=monotonic)

    def run(self, steps: Iterable[Step]) -> None:
        """Steps for which no time is left are named and left out."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.journal.folder.mkdir(parents=True, exist_ok=True)
        for has_lanes, group in groupby(steps, key=lambda step: bool(step.lane)):
            if not has_lanes:
                for step in group:
                    self._run_all([step])
                    _end_children()
                continue
            lanes: dict[str, list[Step]] = {}
            for step in group:
                lanes.setdefault(step.lane, []).append(step)
            with ThreadPoolExecutor(len(lanes)) as pool:
                list(pool.map(self._run_all, lanes.values()))
            _end_children()

    def _run_all(self, steps: Sequence[Step]) -> None:
        for step in steps:
            left_s = self.total_s - LAST_WAIT_S - (monotonic() - self._started_s)
            if left_s < step.least_s:
                self._note(step, f"skipped: {max(0.0, left_s):.0f} s left, it needs {step.least_s:.0f}", 0.0)
                continue
            log = self.log.with_stem("-".join(filter(None, (self.log.stem, step.lane))))
            began_s = monotonic()
            outcome = self._run(step, min(step.limit_s, left_s), log)
            self._note(step, outcome, monotonic() - began_s)
            if outcome not in (OK, NOT_HERE):
                print(_last_lines(log), flush=True)

    def _run(self, step: Step, limit_s: float, path: Path) -> str:
        """How a step ended."""
        with path.open("ab") as log:
            log.write(f"\n===== {step.name}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [*self.command, *step.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return outcome_of(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            return f"timed out after {limit_s:.0f} s"
        finally:
            _kill(process.pid)
            with suppress(subprocess.TimeoutExpired):  # stuck in its driver
                process.wait(LAST_WAIT_S)

    def _note(self, step: Step, outcome: str, seconds: float) -> None:
        self.journal.add("end", step=step.name, outcome=outcome, seconds=round(seconds, 1))
        print(f"{seconds:6.1f} s  {step.name}: {outcome}", flush=True)


def outcome_of(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        return f"signal {-code}"
    return {0: OK, EXIT_NOT_HERE: NOT_HERE}.get(code, f"exit code {code}")


def _end_children() -> None:
    """End all that steps have left behind, which has become ours."""
    until_s = monotonic() + LAST_WAIT_S
    while (left := _children()) and monotonic() < until_s:
        for pid in left:
            _kill(pid)
            os.waitpid(pid, os.WNOHANG)
        sleep(0.02)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def _last_lines(log: Path) -> str:
    lines = log.read_bytes()[-SHOWN_BYTES:].decode(errors="replace").splitlines()
    return "\n".join(f"    {line[:200]}" for line in lines[-SHOWN_LINES:])


def python(*arguments: str) -> tuple[str, ...]:
    """This interpreter, with these arguments; what it prints comes at once."""
    return (sys.executable, "-u", *arguments)
