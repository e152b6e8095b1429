"""What Ctrl-C does to a command."""

import os
import signal

import pytest

from llama_herd.worker.cli.signals import on_interrupt


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    asked = []
    with on_interrupt(lambda: asked.append(True)):
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert asked == [True]
    assert signal.getsignal(signal.SIGINT) == before
