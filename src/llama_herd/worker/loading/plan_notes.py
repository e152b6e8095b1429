"""Files in which the workers of one user on one machine tell each other how much memory they plan to take.

A worker plans its memory when it starts and touches it when jobs need it. So free memory says nothing about
what is planned, and two workers that start together would both plan to take the same.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TextIO

import structlog

from llama_herd.worker.loading.own_folder import is_own_folder, make_own_folder, own_folder, process_name

log = structlog.get_logger(__name__)

#: How long a worker waits for its turn. Planning takes less than a second, unless the process is frozen.
MAX_WAIT_S = 30.0
POLL_S = 0.05


class PlanNotes:
    """The notes of one device: one file per process. It counts as long as the process lives.

    notes = PlanNotes("cpu")
    with notes.turn():
        ...  # plan, seeing what others have planned
        notes.write(num_bytes)
    """

    def __init__(self, device_key: str, max_wait_s: float = MAX_WAIT_S) -> None:
        self._max_wait_s = max_wait_s
        self._folder = own_folder() / device_key

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
                self._wait_for(lock)
            yield

    def _wait_for(self, lock: TextIO) -> None:
        deadline_s = monotonic() + self._max_wait_s
        while not _try_lock(lock):
            if monotonic() >= deadline_s:
                log.warning(
                    "another process still plans its memory, not waiting any longer",
                    lock=lock.name,
                    waited_s=self._max_wait_s,
                )
                return
            sleep(POLL_S)

    def write(self, num_bytes: int) -> None:
        """Note how much this process is going to take in all, in place of its earlier note."""
        if is_own_folder():  # if not, `turn` has warned
            try:
                self._own_note.write_text(str(num_bytes))
            except OSError as error:  # a full disk must not keep a worker from starting
                _warn(error)

    @property
    def _own_note(self) -> Path:
        return self._folder / process_name()

    def others(self) -> dict[int, int]:
        """The bytes that each other process has planned, by process id."""
        if not is_own_folder():
            return {}
        planned = {}
        for path in self._folder.glob("*-*"):
            pid = int(path.name.partition("-")[0])
            if path.name != process_name(pid):
                path.unlink(missing_ok=True)
            elif pid != os.getpid():
                planned[pid] = int(path.read_text() or 0)
        return planned


def _try_lock(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _warn(error: OSError) -> None:
    log.warning("planned memory not noted, other workers may plan to take it too", reason=str(error))
