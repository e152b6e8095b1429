"""What the workers of this machine and user have planned to take, told to each other through files.

A worker reserves memory when it starts and touches it when jobs need it. So what is free says nothing of what
is planned, and two workers that start together would both plan to take the same.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class PlanNotes:
    """The notes of one device: a file for each process, which counts as long as the process lives.

    notes = PlanNotes("cpu")
    with notes.turn():
        ...  # plan, seeing what others have planned
        notes.write(num_bytes)
    """

    def __init__(self, device_key: str) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"llama-herd-{os.getuid()}" / device_key

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Plan and write while no other process does. Without a folder of ours nobody is waited for."""
        with ExitStack() as stack:
            try:
                self._make_folder()
                lock = stack.enter_context((self._folder / "lock").open("w"))
            except OSError as error:
                _warn(error)
            else:
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def write(self, num_bytes: int) -> None:
        """Say what this process is going to have in all, in place of what it said before."""
        if self._is_ours():  # `turn` has said if not
            try:
                self._own.write_text(str(num_bytes))
            except OSError as error:  # a full disk keeps no worker from starting
                _warn(error)

    @property
    def _own(self) -> Path:
        return self._folder / _name_of(os.getpid())

    def others(self) -> dict[int, int]:
        """The bytes that each other process has planned, by its id."""
        if not self._is_ours():
            return {}
        planned = {}
        for path in self._folder.glob("*-*"):
            pid = int(path.name.partition("-")[0])
            if path.name != _name_of(pid):
                path.unlink(missing_ok=True)
            elif pid != os.getpid():
                planned[pid] = int(path.read_text() or 0)
        return planned

    def _make_folder(self) -> None:
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        if not self._is_ours():
            raise PermissionError(f"{self._folder.parent} is somebody else's")
        self._folder.mkdir(exist_ok=True)

    def _is_ours(self) -> bool:
        """Where all may write, anybody may make a folder of our name: only our own is believed."""
        try:
            found = self._folder.parent.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _warn(error: OSError) -> None:
    log.warning("other workers do not see what this one plans to take", reason=str(error))


def _name_of(pid: int) -> str:
    """The process's id and when it began, in ticks; empty when it is gone, or dead and not yet buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state in "ZX" else f"{pid}-{start}"
