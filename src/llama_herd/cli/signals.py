"""Signals: the actions of a command when it is asked to end."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_signals(numbers: tuple[signal.Signals, ...], action: Callable[[], None]) -> Iterator[None]:
    """Call `action` for these signals within the block; from the main thread only."""
    before = {number: signal.signal(number, lambda *_: action()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` at the first Ctrl-C while the block goes on; a second one interrupts the block."""

    def first() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        action()

    with on_signals((signal.SIGINT,), first):
        yield
