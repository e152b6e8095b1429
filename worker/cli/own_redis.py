"""A Redis for one command: it lives as long as the command does, and Ctrl-C is not for it."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from llama_herd.errors import SettingsError
from llama_herd.tasks.connection import masked
from llama_herd.worker.embedded_redis import EmbeddedRedis

_HERE = ("127.0.0.1", "localhost")


@contextmanager
def own_redis(port: int | None = None) -> Iterator[EmbeddedRedis]:
    """Run a redis-server as long as the block lasts, on any free port unless one is named."""
    server = EmbeddedRedis()
    if port is not None:
        server.port = port
    try:
        with _interrupts_held():
            server.start()
        yield server
    finally:
        server.close()


@contextmanager
def redis_at(url: str) -> Iterator[EmbeddedRedis]:
    """The same at `url`. Raises SettingsError when that is another machine's, or the port is taken."""
    parts = urlsplit(url)
    port = parts.port or 6379
    if parts.hostname not in _HERE or parts.password:
        raise SettingsError(
            f"--with-redis starts an open Redis on this machine, but HERD_REDIS_URL is {masked(url)}. "
            "Fix: leave one of them out"
        )
    with socket.socket() as probe:
        if probe.connect_ex((_HERE[0], port)) == 0:
            raise SettingsError(
                f"port {port} is in use, so --with-redis cannot start a Redis there. Fix: leave --with-redis "
                f"out to use what runs there, or set HERD_REDIS_URL to another port"
            )
    with own_redis(port) as server:
        yield server


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let a child inherit a mask without Ctrl-C, which a terminal sends to parent and children alike.

    For us it is only put off to the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
