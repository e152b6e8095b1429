"""A Redis that a worker brings along."""

import socket
from urllib.parse import urlsplit

from llama_herd.errors import SettingsError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.redis_url import masked

_HERE = ("127.0.0.1", "localhost")


def own_redis(url: str) -> EmbeddedRedis:
    """A redis-server for `url`, not yet started.

    Raises SettingsError when `url` is not on this machine or has a password, or when its port is taken.
    """
    port = local_port(url)
    if port is None:
        raise SettingsError(
            f"--with-redis starts a Redis on this machine without a password, but HERD_REDIS_URL is "
            f"{masked(url)}. Fix: leave out one of them"
        )
    if is_port_taken(port):
        raise SettingsError(
            f"port {port} is in use, so --with-redis cannot start a Redis there. Fix: leave out --with-redis "
            f"to use the server that runs there, or set HERD_REDIS_URL to another port"
        )
    return EmbeddedRedis(port)


def local_port(url: str) -> int | None:
    """The port of a Redis on this machine without a password; None for any other."""
    parts = urlsplit(url)
    is_ours = parts.scheme == "redis" and parts.hostname in _HERE and not parts.password
    return (parts.port or 6379) if is_ours else None


def is_port_taken(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((_HERE[0], port)) == 0
