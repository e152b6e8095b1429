"""A file of tensors, mapped into memory: nothing is read before it is asked for."""

import mmap
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from llama_herd.model.files.gguf_header import TensorInfo


class MappedFile:
    """Tensors by name, as views of the file's bytes. Views stay good after `close`.

    The map should be private, so that what is written to a view never reaches the file.
    """

    def __init__(self, path: Path, data: mmap.mmap, tensors: Mapping[str, TensorInfo]) -> None:
        self.path = path
        self.tensors = tensors
        self._data: mmap.mmap | None = data

    def blocks(self, name: str) -> Tensor:
        """A tensor's bytes as they lie in the file: uint8 (rows, bytes of a row), a view of the map."""
        if self._data is None:
            raise ValueError(f"{self.path} is closed")
        info = self.tensors[name]
        flat = torch.frombuffer(self._data, dtype=torch.uint8, count=info.num_bytes, offset=info.offset)
        return flat.view(info.num_rows, -1)

    def release(self, name: str) -> None:
        """Let a tensor's pages go from memory; a view reads them from the file again."""
        if self._data is None:
            return
        info = self.tensors[name]
        start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._data.madvise(mmap.MADV_DONTNEED, start, info.offset + info.num_bytes - start)

    def close(self) -> None:
        """Give up the map; it goes when the last view of it does."""
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
