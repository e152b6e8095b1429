"""The demo's worker: a real `herd worker` in a process of its own, whose log goes to a file."""

import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from llama_herd.errors import HerdError
from llama_herd.worker.local.environment import child_environment
from llama_herd.worker.local.redis_server import END_WITH_PARENT
from llama_herd.worker.settings import WorkerSettings

NUM_TAIL_LINES = 12


class WorkerDied(HerdError):
    """The worker has ended by itself. The message ends with the tail of its log."""


class WorkerProcess:
    """Runs as long as the block lasts; on Linux not longer than the thread that started it.

    with WorkerProcess(settings) as worker:
        worker.check()
    """

    def __init__(self, settings: WorkerSettings) -> None:
        """`settings` are all that count: our variables and a .env here change nothing."""
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="herd-demo-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return Path(self._folder.name) / "worker.log"

    def check(self) -> None:
        """Raise WorkerDied when the worker does not run any more."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            lines = self.log_path.read_text(errors="replace").splitlines()[-NUM_TAIL_LINES:]
            raise WorkerDied(
                "\n  ".join([f"the worker ended with exit code {code}. Its last words:", *lines])
            )

    def __enter__(self) -> Self:
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "llama_herd.worker.cli", "worker", "--name", "demo"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(self._settings),
                cwd=self._folder.name,
                # Ctrl-C in a terminal is for the demo, which ends its worker.
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Killed, not stopped: what it could hand over ends with the demo's Redis.
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
