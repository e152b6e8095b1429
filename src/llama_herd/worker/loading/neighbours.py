"""What the workers of one user on one machine tell each other, by files: which GPUs they have, and how much
memory they plan to take.

A worker plans its memory when it starts and touches it when jobs need it. So free memory says nothing about
what is planned, and two workers that start together would both plan to take the same.
"""

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TextIO

import structlog

from llama_herd.errors import DeviceError

log = structlog.get_logger(__name__)

#: How long a worker waits for its turn to plan, which takes less than a second unless the process is frozen,
#: and for a card: the worker before this one may still be ending.
MAX_TURN_S, MAX_CARD_S = 30.0, 15.0
POLL_S = 0.05

#: The lock files of the cards that this process has, open for as long as it lives. The kernel lets go of them
#: however it ends.
_held: dict[str, TextIO] = {}


class PlanNotes:
    """The notes of one device: one file per process. It counts as long as the process lives.

    notes = PlanNotes("cpu")
    with notes.turn():
        ...  # plan, seeing what others have planned
        notes.write(num_bytes)
    """

    def __init__(self, device_key: str, max_wait_s: float = MAX_TURN_S) -> None:
        self._max_wait_s = max_wait_s
        self._device_key = device_key

    @property
    def _folder(self) -> Path:
        return own_folder() / self._device_key

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Plan and write while no other process does.

        A process that stands still in its turn is waited for up to `max_wait_s`, and without a folder of our
        own there are no turns: the block then runs beside others, and a warning says so.
        """
        with ExitStack() as stack:
            try:
                make_own_folder()
                self._folder.mkdir(exist_ok=True)
                lock = stack.enter_context((self._folder / "lock").open("w"))
            except OSError as error:
                _warn(error)
            else:
                if not _got_lock(lock, fcntl.LOCK_EX, self._max_wait_s):
                    complaint = "another process still plans its memory, not waiting any longer"
                    log.warning(complaint, lock=lock.name, waited_s=self._max_wait_s)
            yield

    def write(self, num_bytes: int) -> None:
        """Note how much this process is going to take in all, in place of its earlier note."""
        if is_own_folder():  # if not, `turn` has warned
            try:
                (self._folder / process_name()).write_text(str(num_bytes))
            except OSError as error:  # a full disk must not keep a worker from starting
                _warn(error)

    def others(self) -> dict[int, int]:
        """The bytes that each other process has planned, by process id."""
        if not is_own_folder():
            return {}
        notes = _notes(self._folder)
        return {pid: int(path.read_text() or 0) for pid, path in notes if pid != os.getpid()}


def take_card(card: str, worker: str, *, is_shared: bool, max_wait_s: float = MAX_CARD_S) -> None:
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
    if not _got_lock(lock, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX, max_wait_s):
        lock.close()
        holders = [f"{path.read_text()} (process {pid})" for pid, path in _notes(folder, "holder-")]
        raise DeviceError(
            f"the GPU {card} is taken by {', '.join(holders) or 'another process'}. "
            "Fix: another HERD_DEVICE, or end that worker; to share the GPU set HERD_MEMORY_SHARE below 1 "
            "for each worker on it"
        )
    _held[card] = lock
    try:
        (folder / f"holder-{process_name()}").write_text(worker)
    except OSError as error:  # a full disk must not keep a worker from starting
        log.warning("GPU locked, but no other worker will say by whom", reason=str(error))


def _got_lock(lock: TextIO, kind: int, max_wait_s: float) -> bool:
    """Whether the lock could be had within the time, shared or alone."""
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


def _notes(folder: Path, prefix: str = "") -> Iterator[tuple[int, Path]]:
    """The notes of processes that live, with their ids; those of dead ones are removed."""
    for path in folder.glob(f"{prefix}*-*"):
        name = path.name.removeprefix(prefix)
        pid = int(name.partition("-")[0])
        if name == process_name(pid):
            yield pid, path
        else:
            path.unlink(missing_ok=True)


def own_folder() -> Path:
    """The folder's path; other users may have made what is there. Raises OSError where none can be made."""
    return Path(tempfile.gettempdir()) / f"llama-herd-{os.getuid()}"


def make_own_folder() -> Path:
    """The folder, made if there is none. Raises PermissionError where it is somebody else's."""
    folder = own_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_own_folder():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def is_own_folder() -> bool:
    """Return whether the folder is ours alone: anybody may make one of its name, or a link."""
    try:
        found = own_folder().lstat()
    except OSError:
        return False
    is_closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_closed


def process_name(pid: int | None = None) -> str:
    """A process's id, by default ours, and its start time in ticks; empty when it is gone, or a zombie."""
    pid = os.getpid() if pid is None else pid
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state in "ZX" else f"{pid}-{start}"


def _warn(error: OSError) -> None:
    log.warning("planned memory not noted, other workers may plan to take it too", reason=str(error))
