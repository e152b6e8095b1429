"""Secrets in files, as container engines pass them: `<variable>_FILE` names the file."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from dotenv.parser import Binding, parse_stream
from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
)

from llama_herd.errors import SettingsError

SUFFIX = "_FILE"

#: Most bytes of a secret. A URL with a password has some hundred.
MAX_SECRET_BYTES = 8_192

#: Container engines put secrets here. A container has no other users.
CONTAINER_SECRETS = "/run/secrets"


def secret_variables(kind: type[BaseSettings]) -> dict[str, str]:
    """The variables that name secrets' files, and the keys of their settings: fields with repr=False."""
    prefix, keys = str(kind.model_config["env_prefix"]), dict[str, str]()
    for name, field in kind.model_fields.items():
        if not field.repr:
            alias = field.validation_alias  # its first choice wins over the others
            key = str(alias.choices[0]) if isinstance(alias, AliasChoices) else name
            keys[f"{prefix}{name.upper()}{SUFFIX}"] = key
    return keys


class SecretFiles(PydanticBaseSettingsSource):
    """Reads the files. A line feed at the end is not part of the secret."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Not used: `__call__` reads all files."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        files = [(key, name, self.path_of(name)) for name, key in secret_variables(self.settings_cls).items()]
        return {key: _content(name, path) for key, name, path in files if path}

    def path_of(self, name: str) -> str | None:
        """The file that `name` names; None if the same source, or one before it, has the secret itself."""
        for source in (EnvSettingsSource(self.settings_cls), DotEnvSettingsSource(self.settings_cls)):
            if name.removesuffix(SUFFIX).lower() in source.env_vars:
                return None
            if name.lower() in source.env_vars:
                return os.path.expanduser(source.env_vars[name.lower()] or "")
        return None


def warn_of_exposed_files(kind: type[BaseSettings]) -> None:
    """Name each exposed file on standard error, once in a process."""
    for name, complaint in exposed_files(kind).items():
        _say_once(f"herd: {name}: {complaint}")


@cache
def _say_once(complaint: str) -> None:
    print(complaint, file=sys.stderr)


def exposed_files(kind: type[BaseSettings]) -> dict[str, str]:
    """Variables whose files other users of this machine may read, each with a complaint and its fix.

    The files are used all the same: container engines give secrets mode 444, and containers have no other
    users.
    """
    with without_complaints():
        files = {name: path for name in secret_variables(kind) if (path := SecretFiles(kind).path_of(name))}
    return {name: complaint for name, path in files.items() if (complaint := _exposure(Path(path)))}


def _exposure(path: Path) -> str:
    """A complaint if others may read the file and enter all its folders; else empty."""
    place = path.absolute()
    if place.is_relative_to(CONTAINER_SECRETS):
        return ""
    try:
        mode = place.stat().st_mode
        folders = [folder.stat().st_mode for folder in place.parents]
    except OSError:
        return ""
    for who, reads, enters in (("everybody", 0o004, 0o001), ("its group", 0o040, 0o010)):
        if mode & reads and all(folder & enters for folder in folders):
            return (
                f"{path} has mode {mode & 0o777:o}: {who} on this machine may read it. Fix: chmod 600 {path}"
            )
    return ""


def _content(name: str, path: str) -> str:
    given = without_login(f"{name}={path}")
    if "\0" in path:
        raise SettingsError(f"{name}: must be a path without a NUL")
    try:
        if not Path(path).is_file():
            Path(path).stat()
            raise SettingsError(f"{given}: is not a regular file. Fix: name a file that holds the secret")
        with Path(path).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise SettingsError(f"{given}: is longer than {MAX_SECRET_BYTES:,} bytes, the limit for a secret")
        return content.decode().removesuffix("\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"{given}: cannot be read: {reason}") from None


def without_login(text: str) -> str:
    """`text` without the user and the password of an address that stands where none belongs."""
    return re.sub(r"//[^/\s]*@", "//***@", text)


MAX_BYTES = 1 << 20


def check_env_file(path: Path, prefix: str) -> None:
    """Raise SettingsError if a line with one of our variables cannot be read, or if the file is too long.

    Broken lines with other variables are ignored.
    """
    for entry in _entries(path):
        if entry.error and prefix in entry.original.string:
            raise SettingsError(
                f"{path}: line {entry.original.line} cannot be read. Fix: write NAME=VALUE, close all quotes"
            )


def names_in(path: Path) -> list[str]:
    """The variables of a file like `.env`; none of one that cannot be read."""
    try:
        return [entry.key for entry in _entries(path) if entry.key]
    except (SettingsError, OSError, UnicodeDecodeError):
        return []


def _entries(path: Path) -> list[Binding]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{path} is longer than {MAX_BYTES:,} bytes. Fix: keep only settings in it")
    return list(parse_stream(StringIO(content.decode())))


@contextmanager
def without_complaints() -> Iterator[None]:
    """Silence python-dotenv inside: it would repeat its warning at each reading of the file."""
    logger = logging.getLogger("dotenv.main")
    logger.addFilter(_drop)
    try:
        yield
    finally:
        logger.removeFilter(_drop)


def _drop(_: logging.LogRecord) -> bool:
    return False
