"""A worker in a child process: start it, wait until it is ready, signal it, end it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from llama_herd.errors import HerdError
from llama_herd.local.redis_server import END_WITH_PARENT
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import WorkerSettings

#: Names under which Celery would find another Redis.
_FOREIGN = ("CELERY_", "REDIS_URL")

#: How much of the log an error shows.
NUM_TAIL_LINES = 12

#: Longest time for its start and its end on a busy machine.
PATIENCE_S = 60.0

POLL_S = 0.01


class WorkerDied(HerdError):
    """A worker has ended by itself. The message includes the end of its log."""


class WorkerProcess:
    """`celery -A llama_herd.tasks.app worker`, or another command, as a child process; ready when entered.

    Its log is a file that may be read at any time. On Linux it ends with the thread that started it. Raises
    WorkerDied when it ends before it is ready.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        name: str,
        log_path: Path,
        *,
        include: str = "",
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Make a process; only `settings` count: the environment and a .env here change nothing.

        name: name@host. include: another module for Celery to import. cwd: its working folder, if not ours.
        """
        self.name = name
        self.settings = settings
        self.log_path = log_path
        self._arguments = ["-A", "llama_herd.tasks.app", "worker", "--without-gossip", "--without-mingle"]
        self._arguments += ["-n", name, *(["-I", include] if include else [])]
        self._env = {**_environment(settings), **(env or {})}
        self._command = command or ["celery", *self._arguments]
        self._cwd = cwd

    def start(self) -> Self:
        """Start the process, and do not wait until it is ready."""
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                env=self._env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in a terminal must only reach the parent, which ends it.
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
        return self

    def wait_until_ready(self, redis_url: str | None = None) -> Self:
        """Wait until the worker is ready. redis_url: the Redis to ask about it, if not the worker's own."""
        with Client(redis_url, settings=self.settings.for_first_tenant) as client:
            until_s = monotonic() + PATIENCE_S
            while not self._is_ready(client):
                self.check()
                if monotonic() >= until_s:
                    raise TimeoutError(f"worker {self.name} was not ready within {PATIENCE_S:.0f} s")
                sleep(POLL_S)
        return self

    def check(self) -> None:
        """Raise WorkerDied if the process no longer runs."""
        code = self.process.poll()
        if code is not None:
            tail = self.log.splitlines()[-NUM_TAIL_LINES:]
            words = [f"worker {self.name} ended with exit code {code}. The end of its log:", *tail]
            raise WorkerDied("\n  ".join(words))

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the process in bytes; 0 once it is gone."""
        try:
            pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1:2]
        except OSError:
            return 0
        return int(*pages) * 4096 if self.is_alive else 0

    @property
    def num_fds(self) -> int:
        """Number of the process's open files and connections; 0 once it is gone."""
        return self._num_entries("fd")

    @property
    def num_threads(self) -> int:
        """Number of the process's threads; 0 once it is gone."""
        return self._num_entries("task")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process at once, as a lost machine would (kill -9)."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return self.wait_for_end()

    def wait_for_end(self) -> int:
        """Wait until the process ends by itself; return the exit code, which is negative for a signal.

        Kills it and raises TimeoutError when that takes too long.
        """
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"worker {self.name} did not end within {PATIENCE_S:.0f} s") from None

    def __enter__(self) -> Self:
        return self.start().wait_until_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _num_entries(self, folder: str) -> int:
        """Number of entries in a folder of the process's /proc."""
        try:
            return len(os.listdir(f"/proc/{self.process.pid}/{folder}"))
        except OSError:
            return 0

    def _is_ready(self, client: Client) -> bool:
        return any(one.name == self.name and one.state == "ready" for one in client.workers())


@contextmanager
def starting_worker(settings: WorkerSettings, name: str) -> Iterator[WorkerProcess]:
    """A `herd worker` that is not ready yet, in a temporary folder; both are gone after the block."""
    with tempfile.TemporaryDirectory(prefix="herd-worker-") as folder:
        worker = WorkerProcess(
            settings,
            f"{name}@{gethostname()}",
            Path(folder) / "worker.log",
            command=["llama_herd.cli", "worker", "--name", name],
            cwd=Path(folder),
        ).start()
        try:
            yield worker
        finally:
            # Killed, not stopped: its jobs end with the caller's Redis anyway.
            worker.kill()


def _environment(settings: WorkerSettings) -> dict[str, str]:
    """Its settings, and the number of OMP's threads, which start before torch is asked."""
    threads = {"OMP_NUM_THREADS": str(settings.threads)} if settings.threads else {}
    return child_environment(settings) | threads


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of a worker with exactly these settings, whatever our own environment says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | {settings.variables(name)[0]: str(value) for name, value in settings.model_dump().items()}
