"""A process that has loaded torch, and forks: one for all test processes of a run.

It listens at a name of the run. A connection asks for one module to be run, or only keeps the server alive:
who leaves takes his module with him, and the last one the server.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import termios
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from time import sleep
from typing import Any, NoReturn

from llama_herd.local.redis_server import END_WITH_PARENT

#: What workers and other commands import, but for what reads their environment: the Celery app, and all that
#: needs it.
LIBRARIES = [
    *("celery.app.control", "celery.app.log", "celery.apps.worker", "celery.backends.redis"),
    *("celery.bin.celery", "celery.concurrency.thread", "celery.events", "celery.fixups.django"),
    *("celery.worker.autoscale", "celery.worker.components", "celery.worker.consumer"),
    *("celery.worker.consumer.delayed_delivery", "celery.worker.strategy", "encodings.idna", "gguf"),
    *("jinja2", "kombu.transport.redis", "pydantic_settings", "structlog", "tokenizers", "torch"),
    *("llama_herd.tasks.client.client", "llama_herd.tasks.gateway.serve"),
    *("llama_herd.cli.batch.runner", "llama_herd.cli.app"),
    *("llama_herd.worker.loading.neighbours", "llama_herd.model.kernels.native"),
    *("llama_herd.worker.loading.loaded_model", "llama_herd.ops.logs"),
    *("llama_herd.ops.exporter", "llama_herd.cli.gateway_collector", "uvicorn"),
]

#: Longest time in which nobody comes or goes, before the first one has come.
PATIENCE_S = 60.0

NUM_STREAMS = 3


class ForkServer:
    """Forks for its connections, until none is left."""

    def __init__(self, listener: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._on(listener, self._accept)

    def serve(self) -> dict[str, Any] | None:
        """Returns what to run, in a fork; None when nobody is left, in the server itself."""
        while True:
            for key, _ in self._selector.select(PATIENCE_S):
                is_current = self._selector.get_map().get(key.fd) is key
                if is_current and (request := key.data()) is not None:
                    return dict(request)
            if len(self._selector.get_map()) == 1:  # the listener
                return None

    def _on(self, file: Any, act: Callable[[], Any]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._on(connection, partial(self._begin, connection))

    def _begin(self, connection: socket.socket) -> Any:
        """Fork for a request; returns it, in the fork."""
        _, streams, *_ = socket.recv_fds(connection, 1, NUM_STREAMS)
        if not streams:
            self._selector.unregister(connection)
            return connection.close()
        request = json.loads(connection.makefile().readline())
        if (pid := os.fork()) == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            return request
        for stream in streams:
            os.close(stream)
        connection.sendall(pid.to_bytes(4))
        self._selector.modify(connection, selectors.EVENT_READ, partial(self._kill, connection, pid))
        ended = os.pidfd_open(pid)
        self._on(ended, partial(self._note_end, connection, pid, ended))
        return None

    def _kill(self, connection: socket.socket, pid: int) -> None:
        """Who has asked for this process is gone."""
        self._selector.unregister(connection)
        os.kill(pid, signal.SIGKILL)

    def _note_end(self, connection: socket.socket, pid: int, ended: int) -> None:
        exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._selector.unregister(ended)
        os.close(ended)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
            connection.sendall(exit_code.to_bytes(4, signed=True))
        connection.close()


def run(request: dict[str, Any]) -> NoReturn:
    """Run a module as `python -m` does, and end this process without the teardown, which would free torch."""
    os.closerange(NUM_STREAMS, 1024)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path.insert(0, request["cwd"])
    os.setsid()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if END_WITH_PARENT:
        END_WITH_PARENT()
    exit_code = 1
    try:
        sys.argv = request["command"]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        exit_code = 0
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # closed, or nobody reads
        sys.stdout.flush()
    os._exit(exit_code)


def main(name: str) -> None:
    """Return when a server listens at the name; if there was none, that is a process which goes on alone."""
    address = f"\0{name}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
    except OSError:
        while socket.socket(socket.AF_UNIX).connect_ex(address):
            sleep(0.01)
        return
    listener.listen(64)
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
    gc.disable()
    for library in LIBRARIES:
        import_module(library)
    gc.freeze()  # a fork looks for garbage in nothing but its own, and copies no memory of the rest for it
    gc.enable()
    request = ForkServer(listener).serve()
    if request is None:
        os._exit(0)
    run(request)


if __name__ == "__main__":
    main(sys.argv[1])
