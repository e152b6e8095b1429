"""The `.env` file of the current folder: its errors are reported, and only once."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from llama_herd.errors import SettingsError

MAX_BYTES = 1 << 20


def check_env_file(path: Path, prefix: str) -> None:
    """Raise SettingsError if a line with one of our variables cannot be read, or if the file is too long.

    Broken lines with other variables are ignored.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{path} is longer than {MAX_BYTES:,} bytes. Fix: keep only settings in it")
    for entry in parse_stream(StringIO(content.decode())):
        if entry.error and prefix in entry.original.string:
            raise SettingsError(
                f"{path}: line {entry.original.line} cannot be read. Fix: write NAME=VALUE, close all quotes"
            )


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
