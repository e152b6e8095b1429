"""A lock of each GPU, so that no two workers of one user on one machine take the same one by accident."""

import fcntl
import re
from pathlib import Path
from time import monotonic, sleep
from typing import TextIO

import structlog

from llama_herd.errors import DeviceError
from llama_herd.worker.loading.own_folder import make_own_folder, process_name

log = structlog.get_logger(__name__)

#: How long a card is waited for: the worker before this one may still be ending.
MAX_WAIT_S = 15.0
POLL_S = 0.1

#: The lock files of the cards that this process has, open for as long as it lives. The kernel lets go of them
#: however it ends.
_held: dict[str, TextIO] = {}


def take_card(card: str, worker: str, *, is_shared: bool, max_wait_s: float = MAX_WAIT_S) -> None:
    """Take a card, by its UUID, for this process's life: alone, or beside others that share it too.

    Raises DeviceError, which names those that have it. Without a folder of our own there is no lock, and a
    warning says so.
    """
    if card in _held:
        return
    try:
        folder = make_own_folder() / f"card-{re.sub('[^A-Za-z0-9-]', '-', card)}"
        folder.mkdir(exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        log.warning("GPU not locked, another worker may take it too", reason=str(error))
        return
    if not _got_lock(lock, is_shared, max_wait_s):
        lock.close()
        raise DeviceError(
            f"the GPU {card} is taken by {', '.join(_holders(folder)) or 'another process'}. "
            "Fix: another HERD_DEVICE, or end that worker; to share the GPU set HERD_MEMORY_SHARE below 1 "
            "for each worker on it"
        )
    _held[card] = lock
    (folder / f"holder-{process_name()}").write_text(worker)


def _got_lock(lock: TextIO, is_shared: bool, max_wait_s: float) -> bool:
    """Whether the lock could be had within the time."""
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    until_s = monotonic() + max_wait_s
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= until_s:
                return False
            sleep(POLL_S)
        else:
            return True


def _holders(folder: Path) -> list[str]:
    """The workers that have the card, with their process ids; notes of dead ones are removed."""
    found = []
    for path in folder.glob("holder-*-*"):
        pid = int(path.name.split("-")[1])
        if path.name == f"holder-{process_name(pid)}":
            found.append(f"{path.read_text()} (process {pid})")
        else:
            path.unlink(missing_ok=True)
    return found
