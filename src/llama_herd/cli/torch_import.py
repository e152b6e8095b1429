"""How a command imports torch, which takes a second or more."""

import gc
import signal
from importlib import import_module

from llama_herd.cli.signals import on_signals


def load_torch() -> None:
    """Import torch. A Ctrl-C waits for the end of the import, which it could abort; a second one does not.

    From the main thread only.
    """
    asked = []

    def first() -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with on_signals((signal.SIGINT,), first):
        _import_to_stay("torch")
    if asked:
        raise KeyboardInterrupt


def _import_to_stay(name: str) -> None:
    """Import what lives to the end: looking through it for garbage again and again takes a quarter second."""
    gc.disable()
    try:
        import_module(name)
        gc.freeze()
    finally:
        gc.enable()
