"""Modules run in forks of a process that has loaded torch: a worker starts in a tenth of the CPU time."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from os import fdopen
from pathlib import Path
from select import select
from threading import Lock, Thread
from typing import IO, NamedTuple, Self

PATIENCE_S = 60.0

FOLDER = Path(__file__).parents[2]


class ForkedPython:
    """`python -m` in a session of its own; with that part of Popen's interface which tests use.

    It ends with this process, however that ends.
    """

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path, *streams: int) -> None:
        self.args = command
        self.returncode: int | None = None
        self._pipes: list[IO[str]] = []
        self._lock = Lock()
        ensure_forkserver()
        self._connection = _connect()
        request = {"command": [*command], "env": dict(env), "cwd": str(cwd)}
        socket.send_fds(self._connection, [b"."], streams)
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid = int.from_bytes(self._connection.recv(4))

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and self._is_readable(0):
                last = self._connection.recv(4)  # nothing: the server was killed, and its forks with it
                self.returncode = int.from_bytes(last, signed=True) if last else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._is_readable(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args[0], timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What is left of the output and of the errors."""
        errors: list[str] = []
        reader = Thread(target=lambda: errors.append(self.stderr.read()))
        reader.start()
        output = self.stdout.read()
        reader.join()
        self.wait(timeout)
        return output, errors[0]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        self.wait()

    def _is_readable(self, timeout_s: float | None) -> bool:
        return bool(select([self._connection], [], [], timeout_s)[0])


@cache
def ensure_forkserver() -> socket.socket:
    """Have the process that has loaded torch, one for all processes of a run: as long as these live."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # which is read as torch is loaded
    command = [sys.executable, "-m", "tests.local.fork_server", _name()]
    subprocess.run(command, cwd=FOLDER, env=env, stdin=subprocess.DEVNULL, check=True, timeout=PATIENCE_S)
    connection = _connect()
    atexit.register(connection.close)
    return connection


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{_name()}")
    return connection


def _name() -> str:
    return f"llama-herd-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"


def start_forked(
    command: Sequence[str], env: Mapping[str, str], log_path: Path, cwd: Path | None = None
) -> ForkedPython:
    """Start a module with its arguments and this environment; its output goes to `log_path`."""
    with log_path.open("wb") as log, Path(os.devnull).open() as nothing:
        return ForkedPython(command, env, cwd or Path.cwd(), nothing.fileno(), log.fileno(), log.fileno())


def start_piped(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> ForkedPython:
    """Start a module whose input is written, and whose output and errors are read."""
    (stdin, to_stdin), (of_stdout, stdout), (of_stderr, stderr) = (os.pipe() for _ in range(3))
    process = ForkedPython(command, env, cwd, stdin, stdout, stderr)
    for end in (stdin, stdout, stderr):
        os.close(end)
    process._pipes = [fdopen(to_stdin, "w"), fdopen(of_stdout), fdopen(of_stderr)]
    process.stdin, process.stdout, process.stderr = process._pipes
    return process


class Done(NamedTuple):
    """How a command ended, and all that it wrote."""

    returncode: int
    output: str


def run_forked(command: Sequence[str], env: Mapping[str, str], folder: Path) -> Done:
    """Run a module to its end in a folder, where its output stays."""
    log_path = folder / "output"
    returncode = start_forked(command, env, log_path, folder).wait(PATIENCE_S)
    return Done(returncode, log_path.read_text())
