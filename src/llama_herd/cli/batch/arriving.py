"""Lines of standard input, which may come slowly."""

import os
from select import POLLIN, poll

_PIECE_BYTES = 1 << 16


class Arriving:
    """The lines of a pipe, a terminal or a file that have arrived so far."""

    def __init__(self, number: int) -> None:
        """`number` is the descriptor of an open file that nothing else reads."""
        self._number = number
        self._poll = poll()
        self._poll.register(number, POLLIN)
        self._bytes = bytearray()
        self._is_over = False

    def readline(self, limit: int) -> bytes | None:
        """A line, or its first `limit` bytes; b"" at the end, None while the line is incomplete."""
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
