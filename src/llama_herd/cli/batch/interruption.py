"""Ctrl-C and SIGTERM: noted at once, acted on between two polls."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from llama_herd.cli.signals import on_signals


class Wish(Enum):
    """The wish of the person who interrupts: let the jobs under way run on, or cancel them."""

    LEAVE = "leave"
    CANCEL = "cancel"


class Interruption:
    """The last signal, if there was one, and the number of signals."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.num_signals = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        def note(number: signal.Signals) -> None:
            self.number = number
            self.num_signals += 1

        with (
            on_signals((signal.SIGINT,), lambda: note(signal.SIGINT)),
            on_signals((signal.SIGTERM,), lambda: note(signal.SIGTERM)),
        ):
            yield

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)

    def wish(self, num_under_way: int) -> Wish:
        """Ask the person who pressed Ctrl-C. Unless the answer is to cancel, the jobs run on."""
        if self.number is not signal.SIGINT or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return Wish.LEAVE
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = input(f"{num_under_way} jobs are under way: leave them running, or cancel them? [L/c] ")
        except (KeyboardInterrupt, EOFError):
            return Wish.LEAVE
        finally:
            signal.signal(signal.SIGINT, before)
        return Wish.CANCEL if answer.strip().lower().startswith("c") else Wish.LEAVE
