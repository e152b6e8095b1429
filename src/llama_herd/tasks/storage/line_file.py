"""A file that grows by whole lines, each of which is safe once it is written."""

import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from llama_herd.errors import BadInput, HerdError

_CHUNK_BYTES = 1 << 16


class CannotWrite(HerdError):
    """A file of lines cannot be written any more. The lines in it are whole. error: the system's."""

    def __init__(self, message: str, error: OSError | None = None) -> None:
        super().__init__(message)
        self.error = error


class LineFile:
    """A file that is only appended to, open within the block, and locked against other writers.

    Opening it does not change it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._num_bytes = 0

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            self._lock()
        except BadInput:
            os.close(self._descriptor)
            raise
        return self

    def _lock(self) -> None:
        """Keep others from writing. Raises BadInput."""
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise BadInput(
                f"{self.path} is not a plain file, so no run could continue from it. Fix: choose another -o"
            )
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                f"{self.path}: another process writes it. Fix: wait until that one ends, or choose another -o"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def repair(self) -> None:
        """Remove a last line that was cut off when its writer died."""
        self._num_bytes = whole_bytes(self._descriptor)
        os.ftruncate(self._descriptor, self._num_bytes)

    def append(self, lines: Sequence[bytes]) -> None:
        """Write whole lines, and return when they are on disk. Raises CannotWrite."""
        if not lines:
            return
        text = memoryview(b"".join(lines))
        try:
            while text:
                text = text[os.write(self._descriptor, text) :]
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._num_bytes)
            raise CannotWrite(
                f"{self.path} cannot be written: {error.strerror}. Fix that, and run the same command again",
                error,
            ) from None
        self._num_bytes += sum(map(len, lines))


def whole_bytes(number: int) -> int:
    """The length of an open file up to its last line feed."""
    end = os.fstat(number).st_size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        feed = os.pread(number, end - start, start).rfind(b"\n")
        if feed >= 0:
            return start + feed + 1
        end = start
    return 0
