"""Several child processes that live and end together, such as one worker a card."""

import signal
import subprocess
from collections.abc import Sequence
from time import sleep

from llama_herd.worker.local.signals import on_signals

POLL_S = 0.1


def run_together(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands side by side until one ends or a signal comes; then end the others and wait for them.

    SIGINT and SIGTERM go on to all children as SIGTERM, a second one too. Returns the exit code of the one
    that ended first, or if that is 0 any other one; a child that a signal killed counts as 128 + its number.
    """
    children: list[subprocess.Popen[bytes]] = []

    def end_all() -> None:
        for child in children:
            child.terminate()

    with on_signals((signal.SIGINT, signal.SIGTERM), end_all):
        try:
            # A session of its own: Ctrl-C in a terminal would reach the children beside what we send.
            children += (subprocess.Popen(command, start_new_session=True) for command in commands)
            while all(child.poll() is None for child in children):
                sleep(POLL_S)
            children.sort(key=lambda child: child.returncode is None)
            end_all()
            return next(filter(None, [_exit_code(child.wait()) for child in children]), 0)
        finally:
            for child in children:
                child.kill()


def _exit_code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode
