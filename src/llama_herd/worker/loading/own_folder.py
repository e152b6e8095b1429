"""The folder where one user's processes on a machine leave notes for each other, and how they sign them."""

import os
import stat
import tempfile
from pathlib import Path


def own_folder() -> Path:
    """Return the folder's path; other users may have made what is there."""
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
