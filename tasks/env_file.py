"""The `.env` file of the folder that a process starts in: what is wrong with it is said once."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from llama_herd.errors import SettingsError

MAX_BYTES = 1 << 20


def check_env_file(path: Path, prefix: str) -> None:
    """Raise SettingsError at a line that names a variable of ours and cannot be read, or at an endless file.

    Broken lines of others are none of our business.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{path} is longer than {MAX_BYTES:,} bytes. Fix: keep settings only in it")
    for entry in parse_stream(StringIO(content.decode())):
        if entry.error and prefix in entry.original.string:
            raise SettingsError(
                f"{path}: line {entry.original.line} cannot be read. Fix: write NAME=VALUE, close quotes"
            )


@contextmanager
def without_complaints() -> Iterator[None]:
    """Keep python-dotenv, which warns at each of several readings, quiet inside."""
    logger = logging.getLogger("dotenv.main")
    logger.addFilter(_drop)
    try:
        yield
    finally:
        logger.removeFilter(_drop)


def _drop(_: logging.LogRecord) -> bool:
    return False
