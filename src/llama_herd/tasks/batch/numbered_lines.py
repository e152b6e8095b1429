"""Numbered lines of a byte stream, each of bounded length."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

#: Longer lines are not read: they exceed the longest prompt that any setting allows.
MAX_LINE_BYTES = 8 << 20

_BOM = b"\xef\xbb\xbf"


class NumberedLine(NamedTuple):
    """A line that is not empty; `text` is None if it was too long. Numbers count from 1."""

    number: int
    text: bytes | None


class LineStream(Protocol):
    """A file, or a source that never blocks and returns None while a line is incomplete."""

    def readline(self, limit: int, /) -> bytes | None: ...


def read_lines(stream: LineStream, max_bytes: int = MAX_LINE_BYTES) -> Iterator[NumberedLine | None]:
    """All lines that are not empty, and None whenever the stream returns it; keeps one line in memory."""
    number, is_rest = 0, False
    while (piece := stream.readline(max_bytes + 1)) != b"":
        if piece is None:
            yield None
            continue
        is_known, is_rest = is_rest, not piece.endswith(b"\n")
        if is_known:
            continue
        number += 1
        text = piece.removeprefix(_BOM if number == 1 else b"").strip()
        if is_rest and len(piece) > max_bytes:
            yield NumberedLine(number, None)
        elif text:
            yield NumberedLine(number, text)
