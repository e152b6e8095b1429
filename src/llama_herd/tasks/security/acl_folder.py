"""A folder with an ACL file for Redis, and a password file for each user."""

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from llama_herd.errors import BadInput
from llama_herd.tasks.security.rights import Dialect, Rights

FILE_NAME = "users.acl"

#: The user without a name is off.
_DEFAULT_USER = "user default off resetkeys resetchannels -@all"

_USER_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
#: A queue in a rule, wherever it stands, but none of its lines: ~herd.tales, or (%R~herd.tales -@all).
_QUEUE = re.compile(r"~(herd\.[^ )*[]+)(?=[ )]|$)")


def write_users(folder: Path, users: Mapping[str, Rights], dialect: Dialect = Dialect.SELECTORS) -> Path:
    """Write these users into the folder's ACL file and return its path.

    Other users stay as they are. A user's password is in the file <name>.password; if that does not exist, a
    random password is written there. The ACL file has only its SHA-256. Raises BadInput.
    """
    for name in users:
        if name == "default":
            raise BadInput(
                "user default: a connection without a name and a password is this user, so it stays off. "
                "Fix: choose another name"
            )
        if not _USER_NAME.fullmatch(name):
            raise BadInput(f"user {name!r}: must be 1 to 128 letters, digits, dots, underscores or dashes")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / FILE_NAME
        lines = _users(path)
        lines.setdefault("default", _DEFAULT_USER)
        for name, rights in users.items():
            lines[name] = rights.user(name, _password(folder / f"{name}.password"), dialect)
        _write(path, "".join(f"{line}\n" for line in lines.values()))
    except OSError as error:
        raise _unusable(folder, error) from None
    return path


def queues_of_users(folder: Path) -> Mapping[str, frozenset[str]]:
    """The queues that each user in the folder's ACL file may reach. Raises BadInput."""
    try:
        return {name: frozenset(_QUEUE.findall(line)) for name, line in _users(folder / FILE_NAME).items()}
    except OSError as error:
        raise _unusable(folder, error) from None


def _users(path: Path) -> dict[str, str]:
    """The line of each user in an ACL file."""
    lines = _text(path).splitlines() if path.exists() else []
    return {line.split(" ")[1]: line for line in lines if line.startswith("user ")}


def _unusable(folder: Path, error: OSError) -> BadInput:
    return BadInput(f"{error.filename or folder} cannot be used: {error.strerror}")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text. Fix: write it anew, or remove it") from None


def _password(path: Path) -> str:
    if not path.exists():
        _write(path, secrets.token_urlsafe(32))
    if password := _text(path).removesuffix("\n"):
        return password
    raise BadInput(f"{path} is empty. Fix: put a password into it, or remove it to get a random one")


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read. It appears complete or not at all."""
    new = path.with_name(f"{path.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
