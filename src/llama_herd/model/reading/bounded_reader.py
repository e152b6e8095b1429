"""Reads a file's header front to back, and nothing that is not there."""

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from llama_herd.errors import ModelFileError

#: Bytes that are read at a time; more only if more are needed at once.
CHUNK_BYTES = 1 << 20

Array = npt.NDArray[np.generic]


class BoundedReader:
    """Reads a file from its start on, whose bytes `read(num_bytes, offset)` gives as they are needed.

    Every read is checked against `end` before it is made.

    `field` names what is being read; errors name it with the file, the offset and both numbers.
    """

    def __init__(self, read: Callable[[int, int], bytes], end: int, source: str) -> None:
        self._read = read
        self._data = bytearray()
        self.end = end
        self.source = source
        self.offset = 0
        self.is_swapped = False  # numbers have their highest byte first

    def need(self, num_bytes: int, field: str) -> None:
        """Raise ModelFileError unless `num_bytes` more bytes are there."""
        left = self.end - self.offset
        if num_bytes > left:
            raise self.error(field, f"needs {num_bytes} bytes, {left} are left")
        while len(self._data) < self.offset + num_bytes:
            start = len(self._data)
            wanted = max(CHUNK_BYTES, self.offset + num_bytes - start)
            self._data += self._read(min(wanted, self.end - start), start)
            if len(self._data) == start:
                raise self.error(field, f"the file ended at byte {start} of {self.end} while it was read")

    def u32(self, field: str) -> int:
        return self._integer(4, field)

    def u64(self, field: str) -> int:
        return self._integer(8, field)

    def _integer(self, num_bytes: int, field: str) -> int:
        self.need(num_bytes, field)
        start = self.offset
        self.offset += num_bytes
        return int.from_bytes(self._data[start : self.offset], "big" if self.is_swapped else "little")

    def count(self, limit: int, field: str) -> int:
        """A 64-bit count, at most `limit`."""
        value = self.u64(field)
        if value > limit:
            raise self.error(field, f"{value} is over the limit of {limit}", 8)
        return value

    def string(self, limit: int, field: str, errors: str = "strict") -> str:
        """A 64-bit length, at most `limit`, and as many bytes of UTF-8; `errors` as for bytes.decode."""
        num_bytes = self.count(limit, f"length of {field}")
        self.need(num_bytes, field)
        start = self.offset
        self.offset += num_bytes
        try:
            return self._data[start : self.offset].decode(errors=errors)
        except UnicodeDecodeError as error:
            raise self.error(field, f"is not UTF-8 at its byte {error.start}", num_bytes) from None

    def strings(self, length: int, limit: int, field: str) -> tuple[str, ...]:
        """`length` strings, each as by `string`: a vocabulary has hundreds of thousands."""
        strings: list[str] = []
        while len(strings) < length:
            self._take_buffered(strings, length, limit)
            if len(strings) < length:
                strings.append(self.string(limit, field))  # reads on, or says what is wrong
        return tuple(strings)

    def _take_buffered(self, strings: list[str], length: int, limit: int) -> None:
        """Add strings up to `length` as long as they are whole, sound and read already."""
        data, start, layout = self._data, self.offset, struct.Struct(">Q" if self.is_swapped else "<Q")
        size = layout.size
        last = len(data) - size
        for _ in range(length - len(strings)):
            if start > last:
                break
            num_bytes = layout.unpack_from(data, start)[0]
            end = start + size + num_bytes
            if num_bytes > limit or end > len(data):
                break
            try:
                strings.append(data[start + size : end].decode())
            except UnicodeDecodeError:
                break
            start = end
        self.offset = start

    def array(self, dtype: np.dtype[np.generic], length: int, field: str) -> Array:
        """`length` numbers, copied, so that the file can be closed. Booleans are 0 or 1, no float is NaN."""
        num_bytes = length * dtype.itemsize
        self.need(num_bytes, field)
        stored = dtype.newbyteorder() if self.is_swapped else dtype
        values: Array = np.frombuffer(self._data, stored, length, self.offset).astype(dtype)
        self.offset += num_bytes
        if dtype.kind == "b" and values.view(np.uint8).max(initial=0) > 1:
            raise self.error(field, f"holds {values.view(np.uint8).max()}, a boolean is 0 or 1", num_bytes)
        if dtype.kind == "f" and np.isnan(values).any():
            raise self.error(field, "holds NaN, numbers are needed", num_bytes)
        return values

    def error(self, field: str, problem: str, num_bytes_read: int = 0) -> ModelFileError:
        """Make the error of a `field` that began `num_bytes_read` bytes before the present position."""
        return damaged(self.source, f"{field} at byte {self.offset - num_bytes_read}: {problem}")


def damaged(source: str, problem: str) -> ModelFileError:
    """The error for a file that says what cannot be. Files are hardly ever made so, but often cut off."""
    return ModelFileError(f"{source}: {problem}. The file is damaged or cut off: fetch it again.")
