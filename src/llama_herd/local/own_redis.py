"""A Redis that a command brings along, where others look for one."""

import fcntl
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO
from urllib.parse import urlsplit

from llama_herd.errors import BadInput, SettingsError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection.redis_url import masked

#: Longest time that it may take to write out its last data.
STOP_TIMEOUT_S = 10.0


class KeptRedis(EmbeddedRedis):
    """Keeps its data in a folder, which one server has at a time; the next one there goes on with it.

    Raises BadInput when the folder cannot be used.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(port, appendonly=True, folder=folder.absolute())
        self._lock: TextIO | None = None

    def start(self) -> Self:
        self._lock = self._lock or _locked(self._folder)
        return super().start()

    def stop(self) -> None:
        """End the server once its data is on the disk."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):  # what it has acknowledged survives a kill
                self._process.wait(STOP_TIMEOUT_S)
        super().stop()

    def close(self) -> None:
        super().close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _locked(folder: Path) -> TextIO:
    """The lock of a folder, which is made if there is none. Raises BadInput."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise BadInput(f"{folder} cannot be used: {error.strerror}. Fix: choose another folder") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise BadInput(
            f"{folder}: another server has its data there. Fix: use that one, or choose another folder"
        ) from None
    return lock


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
