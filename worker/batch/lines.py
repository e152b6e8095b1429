"""Numbered lines of a byte stream, each of bounded length."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

#: A longer line is not read: it holds more than the longest prompt that any setting allows.
MAX_LINE_BYTES = 8 << 20

_SKIP_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line that is not empty; `text` is None when it was too long. Numbers count from 1."""

    number: int
    text: bytes | None


def read_lines(stream: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """All lines but empty ones; holds no more than one of them."""
    number = 0
    while piece := stream.readline(max_bytes + 1):
        number += 1
        if len(piece) > max_bytes and not piece.endswith(b"\n"):
            _skip_line(stream)
            yield Line(number, None)
            continue
        text = piece.removeprefix(_BOM if number == 1 else b"").strip()
        if text:
            yield Line(number, text)


def _skip_line(stream: BinaryIO) -> None:
    while (piece := stream.readline(_SKIP_BYTES)) and not piece.endswith(b"\n"):
        pass
