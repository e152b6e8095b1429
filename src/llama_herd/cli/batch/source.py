"""The sources of a batch's rows."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol

from llama_herd.errors import BadInput
from llama_herd.tasks.batch.source_row import SourceRow

#: The name of standard input.
STDIN = "-"


class Source(Protocol):
    """A source of rows; it yields None while the next row has not arrived.

    `num_rows` reads the source once, and is None if it can be read only once.
    """

    def rows(self) -> Iterator[SourceRow | None]: ...

    def num_rows(self) -> int | None: ...


@contextmanager
def open_unpacked(name: str) -> Iterator[BinaryIO]:
    """The unpacked bytes of a file. Raises BadInput, also if it is damaged."""
    try:
        if name.endswith(".gz"):
            with gzip.open(name, "rb") as packed:
                yield packed  # type: ignore[misc]
        else:
            with open(name, "rb") as plain:
                yield plain
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "damaged or cut off"
        raise BadInput(f"{name} cannot be read: {reason}") from None
