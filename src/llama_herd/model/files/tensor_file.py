"""A file of tensors, open from its header to its last weight: nothing is read before it is asked for.

It is read and not mapped: a map of a file that somebody cuts short kills the process that looks into it.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.bounded_reader import BoundedReader
from llama_herd.model.reading.metadata import quoted

if TYPE_CHECKING:
    from torch import Tensor

ALL = slice(None)


class TensorInfo(NamedTuple):
    """A tensor's type, shape and place in its file."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]  # torch's order: rows first
    offset: int  # of its first byte, from the start of the file
    num_bytes: int

    @property
    def num_rows(self) -> int:
        """Rows of blocks; a tensor of one dimension is one row."""
        return math.prod(self.shape[:-1])


class OpenFile:
    """A file that is read at any place. Who replaces it under its name changes nothing here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb", buffering=0)
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self.num_bytes = os.fstat(self._file.fileno()).st_size

    def read(self, num_bytes: int, offset: int = 0) -> bytes:
        """So many bytes, or as many as are there."""
        return os.pread(self._file.fileno(), num_bytes, offset)

    def reader(self, max_bytes: int) -> BoundedReader:
        """A reader of its header, of at most `max_bytes`."""
        return BoundedReader(self.read, min(self.num_bytes, max_bytes), str(self.path))

    def read_into(self, bytes: npt.NDArray[np.uint8], offset: int) -> int:
        """Fill uint8 (N,) from there on. Returns how many bytes were there."""
        view, num_read = bytes.data, 0
        while num_read < len(view):
            num_more = os.preadv(self._file.fileno(), [view[num_read:]], offset + num_read)
            if not num_more:
                break
            num_read += num_more
        return num_read

    def close(self) -> None:
        self._file.close()

    @property
    def is_closed(self) -> bool:
        return self._file.closed


@dataclass(frozen=True)
class StoredRows:
    """A tensor's rows of blocks, read from the file when they are asked for."""

    file: OpenFile
    info: TensorInfo

    def __len__(self) -> int:
        return self.info.num_rows

    def __getitem__(self, rows: slice) -> Tensor:
        """Read rows as `read` does, as a torch tensor."""
        import torch  # takes a second: who only looks at a file reads no weight

        return torch.from_numpy(self.read(rows))

    def read(self, rows: slice = ALL) -> npt.NDArray[np.uint8]:
        """Read rows as they lie in the file: uint8 (rows, bytes of a row).

        Raises ModelFileError when they are there no more.
        """
        if self.file.is_closed:
            raise ValueError(f"{self.file.path} is closed")
        start, stop, _ = rows.indices(len(self))
        row_bytes = self.info.num_bytes // len(self)
        offset, num_bytes = self.info.offset + start * row_bytes, max(0, stop - start) * row_bytes
        read = np.empty(num_bytes, dtype=np.uint8)
        try:
            num_read = self.file.read_into(read, offset)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}") from error
        if num_read < num_bytes:
            problem = f"ended at byte {offset + num_read} of {offset + num_bytes} while it was read"
            raise self._error(f"{problem}: it was cut short meanwhile")
        return read.reshape(-1, row_bytes)

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(
            f"{self.file.path}: tensor {quoted(self.info.name)} {problem}. Fetch the file again."
        )


class TensorFile(ABC):
    """A file of tensors, which are found by name. A format says how its header is read.

    kind: what such a file is called.
    """

    kind: ClassVar[str]

    def __init__(self, file: OpenFile) -> None:
        self.path = file.path
        self._file = file
        self.tensors = self._read(file)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open and check a file. Raises ModelFileError when it is missing, foreign or damaged."""
        path = Path(path)
        with ExitStack() as stack:
            try:
                if not path.is_file():  # opening a pipe would wait for whoever writes into it
                    problem = "not a regular file" if path.exists() else "no such file"
                    raise ModelFileError(f"{path}: {problem}. Give the path of a {cls.kind} file.")
                file = OpenFile(path)
                stack.callback(file.close)
                opened = cls(file)
            except OSError as error:
                raise ModelFileError(f"{path}: cannot be read: {error.strerror}.") from error
            stack.pop_all()
            return opened

    @abstractmethod
    def _read(self, file: OpenFile) -> Mapping[str, TensorInfo]:
        """The tensors of the file's header. Raises ModelFileError when it is foreign or damaged."""

    def rows(self, name: str) -> StoredRows:
        """A tensor's rows as they lie in the file, to be read while it is open."""
        return StoredRows(self._file, self.tensors[name])

    def close(self) -> None:
        """Give up the file; what has been read of it stays good."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
