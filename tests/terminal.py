"""A terminal: what is typed goes to a command as from a person, and what it shows is seen as by one."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pyte


class Terminal:
    """A pseudo-terminal of some size, and its screen. What is typed is not echoed."""

    def __init__(self, columns: int, rows: int = 24) -> None:
        self._master, self._slave = pty.openpty()
        attributes = termios.tcgetattr(self._slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._slave, termios.TCSANOW, attributes)
        self.screen = pyte.Screen(columns, rows)
        #: All bytes that came.
        self.shown = b""
        self._stream = pyte.ByteStream(self.screen)
        self.resize(columns)

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", self.screen.lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self.screen.resize(columns=columns)

    def start(
        self, command: Sequence[str], env: Mapping[str, str] = os.environ, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the one command that this terminal belongs to, so that Ctrl-C is for it."""
        with self.streams() as (stdin, stdout, stderr):
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=self.environment(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )

    @contextmanager
    def streams(self) -> Iterator[tuple[int, int, int]]:
        """The streams of the one command that this terminal belongs to; the block starts it."""
        yield (self._slave,) * 3
        os.close(self._slave)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What a command on this terminal sees of an environment."""
        known = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        return known | {"TERM": "xterm-256color"}

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def lines(self) -> list[str]:
        """What is to be seen, without lines that are empty."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def read(self) -> bool:
        """Wait until the command shows something, and show it; False: it has ended."""
        with suppress(OSError):  # how the end is told
            piece = os.read(self._master, 1 << 16)
            self.shown += piece
            self._stream.feed(piece)
            return True
        return False

    def read_until(self, text: str) -> None:
        """Read until this stands on the screen. Raises EOFError if the command ends before."""
        while text not in "\n".join(self.lines):
            if not self.read():
                raise EOFError(f"the command has ended without {text!r}, but with {self.lines}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._master)
