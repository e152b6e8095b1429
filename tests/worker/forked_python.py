"""Modules run in forks of a process that has loaded torch: a worker starts in a fifth of the CPU time."""

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import context, forkserver, set_forkserver_preload
from pathlib import Path
from typing import NamedTuple
from unittest import mock

#: What workers import, but for what reads their environment: that is the Celery app, and all that needs it.
LIBRARIES = [
    *("celery.apps.worker", "celery.backends.redis", "celery.bin.celery", "celery.concurrency.thread"),
    *("gguf", "jinja2", "kombu.transport.redis", "pydantic_settings", "structlog", "tokenizers", "torch"),
    *("llama_herd.tasks.client.client", "llama_herd.worker.loading.loaded_model"),
]

#: Longest time for a command on a busy machine.
PATIENCE_S = 60.0


class ForkedPython(context.ForkServerProcess):
    """`python -m` in a session of its own; with that part of Popen's interface which tests use."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log_path: Path, cwd: Path) -> None:
        super().__init__(daemon=True)
        self._command = command
        self._env = env
        self._log_path = log_path
        self._cwd = cwd

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._env)
        os.chdir(self._cwd)
        with self._log_path.open("wb") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        os.setsid()
        from llama_herd.worker.local.redis_server import END_WITH_PARENT

        if END_WITH_PARENT:
            END_WITH_PARENT()
        sys.argv = [*self._command]
        runpy.run_module(self._command[0], run_name="__main__", alter_sys=True)

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self._command[0], timeout or 0)
        return self.exitcode

    def send_signal(self, number: int) -> None:
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, number)


def ensure_forkserver() -> None:
    """Have the process that has loaded torch."""
    set_forkserver_preload(LIBRARIES)
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):  # which is read as torch is loaded
        forkserver.ensure_running()


def start_forked(
    command: Sequence[str], env: Mapping[str, str], log_path: Path, cwd: Path | None = None
) -> ForkedPython:
    """Start a module with its arguments and this environment; its output goes to `log_path`."""
    ensure_forkserver()
    process = ForkedPython(command, env, log_path, cwd or Path.cwd())
    process.start()
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
