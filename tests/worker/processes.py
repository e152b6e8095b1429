"""Real worker processes for tests: started, found ready, killed, and gone for sure at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from llama_herd.tasks.client import Client

#: How long a worker may take to load torch, or a condition to come true; far more than it needs.
PATIENCE_S = 40.0


def wait_until(is_true: Callable[[], object], what: str) -> None:
    """Poll a condition; fail with its name when it does not come true."""
    deadline_s = monotonic() + PATIENCE_S
    while not is_true():
        assert monotonic() < deadline_s, f"{what} did not come true within {PATIENCE_S:.0f} s"
        sleep(0.01)


class WorkerProcess:
    """`celery -A llama_herd.tasks.app worker` as a child process; ready when entered."""

    def __init__(
        self,
        redis_url: str,
        model: Path,
        name: str,
        log: Path,
        *,
        include: str = "",
        env: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        """`include` is a module that the worker imports besides; `settings` are those of WorkerSettings."""
        self.name = f"{name}@test"
        self._redis_url = redis_url
        self._log = log
        self._include = ["-I", include] if include else []
        self._env = {
            **os.environ,
            **(env or {}),
            "HERD_REDIS_URL": redis_url,
            "HERD_MODEL": str(model),
            "OMP_NUM_THREADS": "1",
            **{f"HERD_{key.upper()}": str(value) for key, value in settings.items()},
        }

    def start(self) -> Self:
        command = [sys.executable, "-m", "celery", "-A", "llama_herd.tasks.app", "worker"]
        flags = ["--without-gossip", "--without-mingle", "-n", self.name, *self._include]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([*command, *flags], env=self._env, stdout=log, stderr=log)
        return self

    def wait_until_ready(self, redis_url: str | None = None) -> Self:
        with Client(redis_url or self._redis_url) as client:
            wait_until(lambda: self._is_ready(client), f"worker {self.name} ready")
        return self

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
        """Wait until it ends by itself; the exit code, that of a signal being negative."""
        return self.process.wait(PATIENCE_S)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self.start().wait_until_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def _is_ready(self, client: Client) -> bool:
        assert self.process.poll() is None, f"worker {self.name} ended:\n{self.log}"
        return any(one.name == self.name and one.state == "ready" for one in client.workers())
