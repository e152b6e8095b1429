"""The bar of a batch, as a terminal shows it."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pyte

#: Shows the same figures whenever a line comes in.
SHOWING = """
import sys
from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.worker.batch.screen import open_screen
status = BatchStatus(run_id="r", state="running", input_name="x", num_rows=10_000_000, num_done=1_234_567,
                     num_failed=1234, num_under_way=2048, rows_per_s=1234.5, tokens_per_s=98765.4)
with open_screen(as_json=False) as screen:
    for _ in sys.stdin:
        screen.show(status)
"""
FIGURES = ["1,235,801 of 10,000,000 rows, 1,234 failed, 2,048 under way", "1,234.5 rows/s, 98,765 tokens/s"]
LAST = "1 h 58 min left"


class TerminalWindow:
    """A pseudo-terminal of some width, and what is to be seen in it."""

    def __init__(self, width: int) -> None:
        self.master, self.slave = pty.openpty()
        attributes = termios.tcgetattr(self.slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self.slave, termios.TCSANOW, attributes)
        self.screen = pyte.Screen(width, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.resize(width)

    def resize(self, width: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.screen.resize(24, width)
        self.width = width

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def show_anew(self) -> list[str]:
        """Ask for the figures, and read until the last of them is there; the lines that are not empty."""
        self.screen.reset()
        self.type("\n")
        while LAST not in "".join(self.screen.display):
            self._stream.feed(os.read(self.master, 4096))
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def close(self) -> None:
        os.close(self.master)
        with suppress(OSError):
            os.close(self.slave)


@contextmanager
def showing(width: int) -> Iterator[TerminalWindow]:
    with closing(TerminalWindow(width)) as window:
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        child = subprocess.Popen(
            [sys.executable, "-c", SHOWING],
            stdin=window.slave,
            stdout=window.slave,
            env=environment | {"TERM": "xterm-256color"},
        )
        yield window
        window.type("\x04")  # the end of its input
        assert child.wait() == 0


def test_the_bar_is_as_wide_as_the_terminal_and_no_figure_is_cut_also_after_a_resize() -> None:
    with showing(60) as window:
        for width in (60, 80, 200, 100, 70):
            window.resize(width)
            bar, *figures = window.show_anew()
            assert figures == [*FIGURES, LAST]
            assert (len(bar), bar.endswith(" 12%")) == (width, True)
