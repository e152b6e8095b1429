"""A terminal with somebody at it."""

import fcntl
import os
import pty
import subprocess
import termios
from typing import Self

from tests.worker.batch.batch_command import BatchCommand
from tests.worker.herd_command import COMMAND, environment


class Terminal:
    """A pseudo-terminal that a command has as its own: what is typed is what a person types, also Ctrl-C."""

    def __init__(self, command: BatchCommand) -> None:
        self._command = command
        self._master, self._slave = pty.openpty()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self._command.folder,
            env=environment(HERD_REDIS_URL=self._command.url, TERM="xterm", COLUMNS="200"),
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: str) -> None:
        """Read what is shown, up to this text."""
        shown = ""
        while text not in shown:
            shown += os.read(self._master, 4096).decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._master)
        os.close(self._slave)
