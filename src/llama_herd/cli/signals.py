"""Signals: the actions of a command when it is asked to end, and an import that Ctrl-C must not break."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from llama_herd.errors import BadInput


@contextmanager
def on_signals(
    numbers: tuple[signal.Signals, ...], action: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call `action` with each of these signals that comes within the block; from the main thread only.

    Not for a SIGHUP that is to be ignored, as under nohup.
    """
    is_deaf = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    heard = [number for number in numbers if not (is_deaf and number == signal.SIGHUP)]
    before = {number: signal.signal(number, lambda got, _: action(signal.Signals(got))) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def left_by_signals() -> Iterator[Callable[[], None]]:
    """Let SIGTERM and SIGHUP leave the block, as Ctrl-C does, so that what it has opened is closed.

    They are held back until the block calls what it is given, once its processes are started: Python drops
    what a signal raises at a fork. Only the first leaves it: a terminal that closes sends two.
    """
    come: list[signal.Signals] = []
    are_held = True

    def note(number: signal.Signals) -> None:
        come.append(number)
        if not are_held and len(come) == 1:
            raise SystemExit(128 + number)

    def let_go() -> None:
        nonlocal are_held
        are_held = False
        if come:
            raise SystemExit(128 + come[0])

    with on_signals((signal.SIGTERM, signal.SIGHUP), note):
        yield let_go


@contextmanager
def on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` at the first Ctrl-C while the block goes on; a second one interrupts the block."""

    def first(_: signal.Signals) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        action()

    with on_signals((signal.SIGINT,), first):
        yield


def load_torch() -> None:
    """Import torch. A Ctrl-C waits for the end of the import, which it could abort; a second one does not.

    From the main thread only. What is imported lives to the end: to look through it for garbage again and
    again takes a quarter second. Raises BadInput if it is broken, as where a library of CUDA is missing.
    """
    asked = []

    def first(_: signal.Signals) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with on_signals((signal.SIGINT,), first):
        gc.disable()
        try:
            import_module("torch")
            gc.freeze()
        except (ImportError, OSError, RuntimeError) as error:
            raise BadInput(f"torch cannot be loaded: {error}. Fix: install it anew") from None
        finally:
            gc.enable()
    if asked:
        raise KeyboardInterrupt
