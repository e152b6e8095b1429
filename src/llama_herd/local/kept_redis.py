"""A redis-server whose data outlives it."""

import fcntl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

from llama_herd.errors import BadInput
from llama_herd.local.redis_server import EmbeddedRedis

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
