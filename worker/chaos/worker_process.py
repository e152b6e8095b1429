"""A worker in a process of its own: started, found ready, signalled, killed, and gone at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from llama_herd.tasks.client.client import Client
from llama_herd.worker.chaos.patience import PATIENCE_S, wait_until
from llama_herd.worker.local.environment import child_environment
from llama_herd.worker.local.redis_server import END_WITH_PARENT
from llama_herd.worker.settings import WorkerSettings

NUM_TAIL_LINES = 12


class WorkerProcess:
    """`celery -A llama_herd.tasks.app worker` as a child process; ready when entered.

    Its log is a file that may be read at any time. On Linux it ends with the thread that started it. Raises
    ChildProcessError, which shows the end of the log, when it ends before it is ready.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        name: str,
        log_path: Path,
        *,
        include: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are all that count; `name` is name@host; `include` is a module to import besides."""
        self.name = name
        self.settings = settings
        self._log_path = log_path
        self._arguments = ["-A", "llama_herd.tasks.app", "worker", "--without-gossip", "--without-mingle"]
        self._arguments += ["-n", name, *(["-I", include] if include else [])]
        self._env = {**child_environment(settings), **(env or {}), "OMP_NUM_THREADS": "1"}

    def start(self) -> Self:
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *self._arguments],
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
        return self

    def wait_until_ready(self, redis_url: str | None = None) -> Self:
        """`redis_url`: where to look for it, if not where the worker itself is."""
        with Client(redis_url, settings=self.settings.of_first_tenant) as client:
            wait_until(lambda: self._is_ready(client), f"worker {self.name} ready")
        return self

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def rss_bytes(self) -> int:
        """Memory that it holds; 0 once it is gone."""
        try:
            pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1:2]
        except OSError:
            return 0
        return int(*pages) * 4096 if self.is_alive else 0

    @property
    def num_fds(self) -> int:
        """Files and connections that it has open; 0 once it is gone."""
        return self._num_entries("fd")

    @property
    def num_threads(self) -> int:
        """Its threads; 0 once it is gone."""
        return self._num_entries("task")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, as a lost machine would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.wait_for_end()

    def wait_for_end(self) -> int:
        """Wait until it ends by itself; the exit code, that of a signal being negative.

        Raises TimeoutError when patience ends; then it is killed.
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
        """Of a folder in which the kernel lists what it holds."""
        try:
            return len(os.listdir(f"/proc/{self.process.pid}/{folder}"))
        except OSError:
            return 0

    def _is_ready(self, client: Client) -> bool:
        if not self.is_alive:
            tail = "\n".join(self.log.splitlines()[-NUM_TAIL_LINES:])
            raise ChildProcessError(f"worker {self.name} ended before it was ready:\n{tail}")
        return any(one.name == self.name and one.state == "ready" for one in client.workers())
