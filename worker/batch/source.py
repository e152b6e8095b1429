"""What a batch reads its rows from."""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, Protocol

from llama_herd.errors import BadInput

#: The name of standard input.
STDIN = "-"


class SourceRow(NamedTuple):
    """A row as it was read: its fields, or what is wrong with it. `line` is its number for people."""

    line: int
    fields: Mapping[str, Any] | None
    complaint: str = ""


class Source(Protocol):
    """Something with rows, and None in place of one that has not come yet.

    `num_rows` reads it once, and is None where it can be read only once.
    """

    def rows(self) -> Iterator[SourceRow | None]: ...

    def num_rows(self) -> int | None: ...


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked. Raises BadInput, also for a damaged one."""
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
