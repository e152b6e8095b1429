"""An unattended run: steps one after the other, each a process of its own, all within a time of its own.

Whatever a step does, hang, crash, print without end or leave processes behind, costs no more than its own
results and its own time.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic, sleep

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.step import EXIT_NOT_HERE, NOT_HERE, OK, Step

#: What is kept of a step's output: its first and its last bytes.
HEAD_BYTES, TAIL_BYTES = 40_000, 60_000
#: How long a killed process may take to be gone. One that waits for its driver may never be.
LAST_WAIT_S = 3.0
#: From linux/prctl.h: orphans of our children become our own children.
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Output:
    """The beginning and the end of what a step prints."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    num_bytes: int = 0

    def add(self, part: bytes) -> None:
        self.num_bytes += len(part)
        room = HEAD_BYTES - len(self.head)
        self.head += part[:room]
        self.tail += part[room:]
        del self.tail[:-TAIL_BYTES]

    @property
    def text(self) -> str:
        left_out = self.num_bytes - len(self.head) - len(self.tail)
        gap = f"\n... {left_out:,} bytes left out ...\n".encode() if left_out else b""
        return bytes(self.head + gap + self.tail).decode(errors="replace")


@dataclass(frozen=True)
class Unattended:
    """Runs steps for `total_s` at most, and writes down how each ended.

    It ends every process that is its child when a step is over: it must be all that its process does.
    """

    journal: Journal
    command: Sequence[str]  # that the arguments of a step are added to
    total_s: float

    def run(self, steps: Sequence[Step]) -> None:
        """Steps for which no time is left are named and left out."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        started_s = monotonic()
        for step in steps:
            left_s = self.total_s - LAST_WAIT_S - (monotonic() - started_s)
            if left_s < step.least_s:
                self._note(step, f"skipped: {max(0.0, left_s):.0f} s left, it needs {step.least_s:.0f}", 0.0)
                continue
            began_s = monotonic()
            outcome, output = self._run(step, min(step.limit_s, left_s))
            self._note(step, outcome, monotonic() - began_s)
            self._log(step, outcome, output)

    def _run(self, step: Step, limit_s: float) -> tuple[str, Output]:
        """How a step ended, and what it printed."""
        output, deadline_s = Output(), monotonic() + limit_s
        process = subprocess.Popen(
            [*self.command, *step.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        is_over = _follow(process, output, deadline_s)
        _kill_all(process)
        if not is_over:
            return f"timed out after {limit_s:.0f} s", output
        return outcome_of(process.returncode), output

    def _note(self, step: Step, outcome: str, seconds: float) -> None:
        self.journal.add("end", step=step.name, outcome=outcome, seconds=round(seconds, 1))
        print(f"{seconds:6.1f} s  {step.name}: {outcome}", flush=True)

    def _log(self, step: Step, outcome: str, output: Output) -> None:
        text = f"\n===== {step.name}: {outcome}\n{output.text}\n"
        with (self.journal.folder / "log.txt").open("ab", buffering=0) as log:  # whole, beside other runs
            log.write(text.encode())
        if outcome != OK and output.num_bytes:
            print(_last_lines(output.text), flush=True)


def outcome_of(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        return f"signal {-code}"
    return {0: OK, EXIT_NOT_HERE: NOT_HERE}.get(code, f"exit code {code}")


def _follow(process: subprocess.Popen[bytes], output: Output, deadline_s: float) -> bool:
    """Take what a process prints until it ends; whether it did so in time."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    with DefaultSelector() as selector:
        selector.register(pipe, EVENT_READ)
        while monotonic() < deadline_s:
            if selector.select(timeout=0.1) and not _take(pipe, output):
                selector.unregister(pipe)  # closed, by its end or before
                break
            if process.poll() is not None:
                _take(pipe, output)
                return True
    try:
        process.wait(max(0.0, deadline_s - monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _take(pipe: int, output: Output) -> bool:
    """Take what there is; whether there may be more."""
    try:
        part = os.read(pipe, 1 << 16)
    except BlockingIOError:
        return True
    output.add(part)
    return bool(part)


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has left behind, which has become ours."""
    if process.stdout is not None:
        process.stdout.close()
    _kill(process.pid)
    try:
        process.wait(LAST_WAIT_S)
    except subprocess.TimeoutExpired:
        return  # stuck in its driver
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


def _last_lines(text: str, num_lines: int = 12) -> str:
    return "\n".join(f"    {line[:200]}" for line in text.splitlines()[-num_lines:])


def python(*arguments: str) -> tuple[str, ...]:
    """This interpreter, with these arguments; what it prints comes at once."""
    return (sys.executable, "-u", *arguments)
