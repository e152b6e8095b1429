"""Rows that another program writes to standard input, however slowly."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from select import POLLIN, poll

from llama_herd.errors import BadInput
from llama_herd.tasks.batch.numbered_lines import read_lines
from llama_herd.tasks.batch.source_row import SourceRow, parse_row

_PIECE_BYTES = 1 << 16


class ArrivingLines:
    """The lines of a pipe, a terminal or a file that have arrived so far."""

    def __init__(self, number: int) -> None:
        """`number` is the descriptor of an open file that nothing else reads."""
        self._number = number
        self._poll = poll()
        self._poll.register(number, POLLIN)
        self._bytes = bytearray()
        self._is_over = False

    def readline(self, limit: int) -> bytes | None:
        """The next line, or its first `limit` bytes; b"" at the end, None while the line is incomplete."""
        while not self._is_over and len(self._bytes) < limit and b"\n" not in self._bytes:
            if not self._poll.poll(0):
                return None
            piece = os.read(self._number, _PIECE_BYTES)
            self._bytes += piece
            self._is_over = not piece
        end = self._bytes.find(b"\n", 0, limit) + 1 or limit
        line = bytes(self._bytes[:end])
        del self._bytes[:end]
        return line


@dataclass(frozen=True)
class StandardInput:
    """A source of rows: one JSON object a line."""

    number: int = 0

    def rows(self) -> Iterator[SourceRow | None]:
        try:
            yield from map(parse_row, read_lines(ArrivingLines(self.number)))
        except OSError as error:
            raise BadInput(f"standard input cannot be read: {error.strerror}") from None

    def num_rows(self) -> int | None:
        return None
