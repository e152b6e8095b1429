"""Celery forked off a process that has loaded torch: a worker starts in a fifth of the CPU time."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import context, forkserver, set_forkserver_preload
from pathlib import Path
from unittest import mock

#: What workers import that is not ours: of ours, a worker imports all anew, in its own environment.
LIBRARIES = [
    *("celery.apps.worker", "celery.backends.redis", "celery.bin.celery", "celery.concurrency.thread"),
    *("gguf", "jinja2", "kombu.transport.redis", "pydantic_settings", "structlog", "tokenizers", "torch"),
]


class ForkedCelery(context.ForkServerProcess):
    """`celery` in a session of its own; with that part of Popen's interface which tests use."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], log_path: Path) -> None:
        super().__init__(daemon=True)
        self._arguments = arguments
        self._env = env
        self._log_path = log_path

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._env)
        with self._log_path.open("wb") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        os.setsid()
        from llama_herd.worker.local.redis_server import END_WITH_PARENT

        if END_WITH_PARENT:
            END_WITH_PARENT()
        from celery.bin.celery import main

        sys.argv = ["celery", *self._arguments]
        sys.exit(main())

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired("celery", timeout or 0)
        return self.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, number)


def ensure_forkserver() -> None:
    """Have the process that has loaded torch."""
    set_forkserver_preload(LIBRARIES)
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):  # which is read as torch is loaded
        forkserver.ensure_running()


def start_celery(arguments: Sequence[str], env: Mapping[str, str], log_path: Path) -> ForkedCelery:
    """Start `celery` with these arguments and this environment; its output goes to `log_path`."""
    ensure_forkserver()
    process = ForkedCelery(arguments, env, log_path)
    process.start()
    return process
