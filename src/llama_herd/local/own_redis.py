"""A Redis that a command brings along, where others look for one."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

from llama_herd.errors import SettingsError
from llama_herd.local.kept_redis import KeptRedis
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.redis_url import masked

_HERE = ("127.0.0.1", "localhost")


def own_redis(url: str, asker: str, *, port: int | None = None, folder: Path | None = None) -> EmbeddedRedis:
    """A redis-server for `url`, or at a `port` of its own, not yet started.

    asker: what is to start it, as errors name it. port: 0: any free one. folder: where its data stay.
    Raises SettingsError when `url` is not on this machine or has a password, or when the port is taken.
    """
    found = local_port(url) if port is None else port
    if found is None:
        raise SettingsError(
            f"{asker} starts a Redis on this machine without a password, but HERD_REDIS_URL is "
            f"{masked(url)}. Fix: leave out {asker} to use that one, or HERD_REDIS_URL to start one here"
        )
    if found and is_port_taken(found):
        other = "set HERD_REDIS_URL to another port" if port is None else "choose another port"
        raise SettingsError(
            f"port {found} is in use, so {asker} cannot start a Redis there. Fix: leave out {asker} "
            f"to use the server that runs there, or {other}"
        )
    return EmbeddedRedis(found or None) if folder is None else KeptRedis(folder, found or None)


def local_port(url: str) -> int | None:
    """The port of a Redis on this machine without a password; None for any other."""
    parts = urlsplit(url)
    is_ours = parts.scheme == "redis" and parts.hostname in _HERE and not parts.password
    return (parts.port or 6379) if is_ours else None


def is_port_taken(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((_HERE[0], port)) == 0
