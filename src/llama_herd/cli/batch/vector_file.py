"""A run's vectors in a file, each where its row stands. At the end it is an .npy file of float32.

Which of them are there the lines of the answers say, which are written after them.
"""

import os
import re
import sys
from array import array
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import nan
from pathlib import Path
from struct import pack
from typing import Self

from llama_herd.errors import BadInput
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.storage.line_file import CannotWrite

FLOAT_BYTES = 4
#: Bytes before the first vector: NumPy reads a header of any length, and aligns its own to 64.
HEADER_BYTES = 128
_BEGIN = b"\x93NUMPY\x01\x00" + pack("<H", HEADER_BYTES - 10)
_SHAPE = re.compile(rb"'shape': \((\d+), (\d+)\)")


def _header(num_rows: int, width: int) -> bytes:
    """What stands before the numbers in an .npy file, version 1.0."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({num_rows}, {width}), }}"
    return _BEGIN + text.encode().ljust(HEADER_BYTES - len(_BEGIN) - 1) + b"\n"


class VectorFile:
    """Vectors of one width, by position; open within the block. Until `finish` no reader takes it for whole.

    width: numbers of each; 0 while there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.width = 0
        self._number = -1
        self._is_draft = False

    def __enter__(self) -> Self:
        """Raises BadInput."""
        try:
            self._number = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written: {error.strerror}") from None
        found = _SHAPE.search(os.pread(self._number, HEADER_BYTES, 0))
        self.width = int(found[2]) if found else 0
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._number)

    def write(self, items: Iterable[BatchItem]) -> None:
        """Write the vectors of rows that ended well; they are on disk when it returns. Raises CannotWrite."""
        with self._named_errors():
            for item in items:
                assert item.result is not None  # only rows with a vector come here
                vector = b64decode("".join(filter(None, item.result.vectors or ())))
                self._check_width(len(vector) // FLOAT_BYTES, item)
                self._put(item.row.tag.position, vector)
            os.fsync(self._number)

    def _check_width(self, width: int, item: BatchItem) -> None:
        if not self._is_draft:
            self.width = self.width or width
            # Without its first byte it is no header yet, but tells the width to who goes on.
            self._write(b"\0" + _header(0, self.width)[1:], 0)
            self._is_draft = True
        if width != self.width:
            raise CannotWrite(
                f"row {item.index} has a vector of {width} numbers, and rows before it have {self.width}: "
                f"another model serves as {item.model} now. Fix: start the one from before, and run the same "
                "command again; or choose another -o"
            )

    def _put(self, position: int, vector: bytes) -> None:
        self._write(vector, HEADER_BYTES + FLOAT_BYTES * self.width * position)

    def _write(self, piece: bytes, start: int) -> None:
        rest = memoryview(piece)
        while rest:
            num = os.pwrite(self._number, rest, start)
            rest, start = rest[num:], start + num

    def read(self, position: int) -> "array[float]":
        """A vector that was written."""
        size = FLOAT_BYTES * self.width
        vector = array("f", os.pread(self._number, size, HEADER_BYTES + size * position))
        if sys.byteorder == "big":
            vector.byteswap()
        return vector

    def finish(self, num_rows: int, missing: Iterable[int]) -> None:
        """Make it an .npy file of so many rows; those missing are NaN. Raises CannotWrite."""
        with self._named_errors():
            for position in missing:
                self._put(position, pack("<f", nan) * self.width)
            os.ftruncate(self._number, HEADER_BYTES + FLOAT_BYTES * self.width * num_rows)
            os.fsync(self._number)
            self._write(_header(num_rows, self.width), 0)
            os.fsync(self._number)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CannotWrite(
                f"{self.path} cannot be written: {error.strerror}. Fix that, and run the same command again",
                error,
            ) from None
