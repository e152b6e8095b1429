"""A worker process as tests tend it: ready when entered, signalled, stopped, and measured."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from llama_herd.local.worker_process import WorkerProcess
from llama_herd.tasks.client.client import Client
from llama_herd.worker.settings import WorkerSettings

#: Longest time for its start and its end on a busy machine.
PATIENCE_S = 60.0

POLL_S = 0.01


class TendedWorker(WorkerProcess):
    """`celery -A llama_herd.tasks.app worker`, or another command; ready when entered.

    Raises WorkerDied when it ends before it is ready.
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
        """include: another module for Celery to import."""
        arguments = ["-A", "llama_herd.tasks.app", "worker", "--without-gossip", "--without-mingle"]
        arguments += ["-n", name, *(["-I", include] if include else [])]
        super().__init__(settings, name, log_path, command or ["celery", *arguments], env or {}, cwd)

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
