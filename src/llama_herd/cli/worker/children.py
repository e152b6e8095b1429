"""Several child processes, such as one worker per GPU: dead ones are started again, and a signal ends all."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import NamedTuple

import structlog

from llama_herd.cli.signals import on_signals
from llama_herd.local.redis_server import STOP_WITH_PARENT
from llama_herd.worker.process import EXIT_DEVICE_LOST

log = structlog.get_logger(__name__)

POLL_S = 0.1

#: Exit codes after which a new start is useless: the child was told to end, or its settings are wrong.
FINAL_CODES = (0, 2)


class Backoff(NamedTuple):
    """Pauses before a dead child is started again: each twice as long, until one run lasts long enough.

    A GPU that was lost rarely comes back by itself, and each try may hold up the others: it gets longer ones.
    """

    first_s: float = 1.0
    most_s: float = 60.0
    sound_s: float = 300.0
    lost_first_s: float = 60.0
    lost_most_s: float = 3_600.0

    def after(self, pause_s: float, ran_s: float, exit_code: int) -> float:
        """The next pause, after one of `pause_s` and a run of `ran_s` that ended with this code."""
        is_lost = exit_code == EXIT_DEVICE_LOST
        first_s, most_s = (self.lost_first_s, self.lost_most_s) if is_lost else (self.first_s, self.most_s)
        return first_s if ran_s >= self.sound_s else min(most_s, max(first_s, 2 * pause_s))


DEFAULT_BACKOFF = Backoff()


def run_together(commands: Mapping[str, Sequence[str]], backoff: Backoff = DEFAULT_BACKOFF) -> int:
    """Run the named commands side by side until all have ended for good, or a signal has ended them.

    SIGINT and SIGTERM are passed on to all children as SIGTERM, also a second one. After the first, no child
    is started again. On Linux children get SIGTERM, too, when this process is killed or its terminal closes.
    Returns the first exit code other than 0 of children that were not started again; for a child that a
    signal killed it is 128 + the signal's number.
    """
    children = [Child(name, command, backoff) for name, command in commands.items()]

    def end_all(_: signal.Signals) -> None:
        for child in children:
            child.end()

    with on_signals((signal.SIGINT, signal.SIGTERM), end_all):
        try:
            while not all(child.has_ended for child in children):
                for child in children:
                    child.look()
                sleep(POLL_S)
        finally:
            for child in children:
                child.kill()
    return next((child.exit_code for child in children if child.exit_code), 0)


class Child:
    """A command that is run again when it dies. `look` does all the work and must be called regularly."""

    def __init__(self, name: str, command: Sequence[str], backoff: Backoff) -> None:
        self._name = name
        self._command = command
        self._backoff = backoff
        self._pause_s = 0.0
        self._start_s = monotonic()  # when it was started, or will be
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self.exit_code = 0

    @property
    def has_ended(self) -> bool:
        """Whether it does not run and will not be started again."""
        return self._process is None and self._is_ending

    def look(self) -> None:
        """Start it if that is due; if it has ended, decide whether and when to start it again."""
        if self._process is None:
            if not self._is_ending and monotonic() >= self._start_s:
                self._start()
        elif self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            self._note_end(128 - code if code < 0 else code)

    def end(self) -> None:
        """Ask it to end, and do not start it again; may be called from a signal handler."""
        self._is_ending = True
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _start(self) -> None:
        self._start_s = monotonic()
        # A session of its own: otherwise Ctrl-C in a terminal would reach the children twice.
        self._process = subprocess.Popen(self._command, start_new_session=True, preexec_fn=STOP_WITH_PARENT)
        if self._is_ending:  # a signal has come meanwhile
            self._process.terminate()

    def _note_end(self, exit_code: int) -> None:
        """Decide whether a child that has ended is started again, and when."""
        ran_s = monotonic() - self._start_s
        facts = {"child": self._name, "exit_code": exit_code, "ran_s": round(ran_s, 1)}
        if self._is_ending or exit_code in FINAL_CODES:
            self._is_ending, self.exit_code = True, exit_code
            log.info("child ended", **facts)
            return
        self._pause_s = self._backoff.after(self._pause_s, ran_s, exit_code)
        self._start_s = monotonic() + self._pause_s
        event = "child died, restarting it"
        if exit_code == EXIT_DEVICE_LOST:
            event = "GPU lost, trying it again after a pause"
        log.error(event, **facts, pause_s=self._pause_s)
