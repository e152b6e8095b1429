"""A folder in which none but this user and root can change what is there.

Whoever can rename one of its parents puts another folder in its place, so all of them count, up to the root.
"""

import grp
import os
import pwd
import stat
from functools import cache
from pathlib import Path

from llama_herd.errors import BadInput

_MOST_LINKS = 40  # as many as Linux follows
_OWN_FOLDER = "set HERD_KERNELS_DIR to a folder of your own"


def trusted_folder(folder: Path, *, make: bool = False) -> Path:
    """The folder by a path without links, each part of which only this user and root can change.

    `make`: with what is missing of it. Raises BadInput where others can change a part, OSError where one is
    missing, cannot be made or is no folder.
    """
    real, rest, num_links = Path("/"), [*folder.absolute().parts[:0:-1]], 0
    _check(real, is_parent=True)
    while rest:
        *rest, name = rest
        part = real.parent if name == ".." else real / name
        if make and not os.path.lexists(part):
            part.mkdir(mode=0o755, exist_ok=True)
        _check(part, is_parent=True)
        if not part.is_symlink():
            real = part
            continue
        num_links += 1
        if num_links > _MOST_LINKS:
            raise BadInput(f"{folder} has more than {_MOST_LINKS} links on its way. Fix: name another folder")
        target = part.readlink()
        real = Path("/") if target.is_absolute() else real
        rest = [*rest, *(name for name in reversed(target.parts) if name != "/")]
    _check(real, is_parent=False)
    return real


def complaint_of_file(path: Path) -> str:
    """How others than this user and root can change a file of a trusted folder; empty: not at all."""
    state = path.lstat()
    if state.st_uid not in _trusted_users():
        return f"belongs to {_name(state.st_uid)}"
    return f"can be written by {writers}" if (writers := _writers(path)) else ""


def _check(part: Path, *, is_parent: bool) -> None:
    """Refuse a part of a path that others can change, or put something else in the place of what is in it.

    In a sticky folder, as /tmp is one, everybody makes entries, but only its owner renames or removes one: as
    a parent it will do, for the next part is looked at too.
    """
    state, refusal = part.lstat(), f"others can change {part}, and with it the code that would be run:"
    if state.st_uid not in _trusted_users():
        raise BadInput(f"{refusal} it belongs to {_name(state.st_uid)}. Fix: {_OWN_FOLDER}")
    is_sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
    if (writers := _writers(part)) and not (is_parent and is_sticky):
        fix = f"chmod go-w {part}, or {_OWN_FOLDER}"
        raise BadInput(f"{refusal} {writers} may write there. Fix: {fix}")


def _writers(path: Path) -> str:
    """The others who may write to a path by its mode; empty: nobody. A link has no mode of its own."""
    state = path.lstat()
    if stat.S_ISLNK(state.st_mode):
        return ""
    if state.st_mode & stat.S_IWOTH:
        return "everybody"
    if state.st_mode & stat.S_IWGRP and not (_is_own_group(state.st_gid) and not _has_access_list(path)):
        return f"group {state.st_gid}"
    return ""


def _trusted_users() -> tuple[int, int]:
    return 0, os.geteuid()


@cache
def _is_own_group(gid: int) -> bool:
    """Whether nobody but this user is in a group: where each user has such a one, his folders are its too."""
    try:
        user, members = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid).gr_mem
    except KeyError:
        return False
    others = [
        other.pw_name for other in pwd.getpwall() if other.pw_gid == gid and other.pw_uid != user.pw_uid
    ]
    return user.pw_gid == gid and set(members) <= {user.pw_name} and not others


def _has_access_list(path: Path) -> bool:
    """Whether the group's bits may speak of others, whom an access list names."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:
        return True


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
