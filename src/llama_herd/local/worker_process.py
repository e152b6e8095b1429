"""A worker in a child process, alone or with a Redis of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Self

from llama_herd.errors import HerdError
from llama_herd.local.redis_server import END_WITH_PARENT, EmbeddedRedis, temporary_folder
from llama_herd.tasks.settings import ACCESS, Settings
from llama_herd.worker.settings import WorkerSettings

#: Names under which Celery would find another Redis.
_FOREIGN = ("CELERY_", "REDIS_URL")

#: How much of the log an error shows.
NUM_TAIL_LINES = 12


class WorkerDied(HerdError):
    """A worker has ended by itself. The message includes the end of its log."""


@dataclass(eq=False)
class WorkerProcess:
    """A command that runs a worker, as a child process. Its log is a file that may be read at any time.

    On Linux it ends with the thread that started it. Only `settings` count: the environment and a .env here
    change nothing.

    name: name@host. command: a module for Python and its arguments. env: what else is in its environment.
    cwd: its working folder, if not ours.
    """

    settings: WorkerSettings
    name: str
    log_path: Path
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of the process."""
        # The number of OMP's threads too, which start before torch is asked.
        threads = {"OMP_NUM_THREADS": str(self.settings.threads)} if self.settings.threads else {}
        return {**child_environment(self.settings), **threads, **self.env}

    def start(self) -> Self:
        """Start the process, and do not wait until it is ready."""
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                env=self.environment,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in a terminal must only reach the parent, which ends it.
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
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

    def kill(self) -> None:
        """Kill the process at once, as a lost machine would (kill -9)."""
        self.process.kill()
        self.process.wait()


@contextmanager
def starting_worker(settings: WorkerSettings, name: str) -> Iterator[WorkerProcess]:
    """A `herd worker` that is not ready yet, in a temporary folder; both are gone after the block."""
    with temporary_folder("herd-worker-") as folder:
        worker = WorkerProcess(
            settings,
            f"{name}@{gethostname()}",
            Path(folder) / "worker.log",
            ["llama_herd", "worker", "--name", name],
            cwd=Path(folder),
        ).start()
        try:
            yield worker
        finally:
            # Killed, not stopped: its jobs end with the caller's Redis anyway.
            worker.kill()


@contextmanager
def own_herd(settings: WorkerSettings) -> Iterator[WorkerProcess]:
    """A worker with a Redis for one run, and everything else as in `settings`; neither outlives it."""
    with EmbeddedRedis() as server, starting_worker(settings_at(settings, server.url), "own") as worker:
        yield worker


def settings_at(settings: WorkerSettings, redis_url: str) -> WorkerSettings:
    """The same settings at a Redis on this machine that needs no password, and has one tenant."""
    own = {"redis_url": redis_url, "result_url": "", "model": settings.model.resolve()}
    return settings.model_copy(update=own | dict.fromkeys(("tenants", *ACCESS), ""))


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of a worker with exactly these settings, whatever our own environment says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | {settings.variables(name)[0]: str(value) for name, value in settings.model_dump().items()}
