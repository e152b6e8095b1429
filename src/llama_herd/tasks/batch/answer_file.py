"""A file of answers, one per line. It is only appended to, each line is whole, and it shows what is done."""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from llama_herd.errors import BadInput, HerdError
from llama_herd.tasks.batch.answer_line import answered_row

_CHUNK_BYTES = 1 << 16


class CannotWrite(HerdError):
    """A file of answers cannot be written any more. The lines in it are whole. error: the system's."""

    def __init__(self, message: str, error: OSError | None = None) -> None:
        super().__init__(message)
        self.error = error


class AnswerFile:
    """A file of answers, open within the block, and locked against other writers.

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
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise BadInput(
                f"{self.path} is not a plain file, so no run could continue from it. Fix: choose another -o"
            )
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise BadInput(
                f"{self.path}: another process writes it. Fix: wait until that one ends, or choose another -o"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def repair(self) -> None:
        """Remove a last line that was cut off when its writer died."""
        self._num_bytes = whole_bytes(self._descriptor)
        os.ftruncate(self._descriptor, self._num_bytes)

    def lines(self, run_id: str) -> Iterator[int]:
        """The numbers of a run's rows in this file."""
        return (line for line, _ in self.line_offsets(run_id))

    def line_offsets(self, run_id: str) -> Iterator[tuple[int, int]]:
        """The numbers of a run's rows, and where in the file their lines begin."""
        start = 0
        with self.path.open("rb") as file:
            for text in file:
                row = answered_row(text, run_id)
                if row is not None:
                    yield row, start
                start += len(text)

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
