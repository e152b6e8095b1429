"""GGUF files: a strict, bounded header, and tensors that stay in the file until they are read."""

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Self

from llama_herd.errors import ModelFileError
from llama_herd.model.files.file_kind import GGUF_MAGIC, HEAD_BYTES, recognise
from llama_herd.model.files.gguf_header import (
    MAX_HEADER_BYTES,
    MIN_FILE_BYTES,
    Header,
    MetaValue,
    TensorInfo,
    read_header,
)
from llama_herd.model.files.gguf_layout import checked_tensors
from llama_herd.model.files.tensor_file import OpenFile, TensorFile
from llama_herd.model.reading.metadata import Metadata

__all__ = ["GGUFFile", "MetaValue", "TensorInfo"]


class GGUFFile(TensorFile):
    """A GGUF file of version 2 or 3, little-endian.

        with GGUFFile.open("model.gguf") as file:
            file.metadata["general.name"]
            file.blocks("output_norm.weight")  # uint8 (rows, bytes of a row)

    `blocks` are those of the quantisation: a row of a Q8_0 tensor is a row of its blocks.
    """

    def __init__(self, file: OpenFile) -> None:
        header, source = Header(), str(file.path)
        read_header_of(file, header)
        super().__init__(file, checked_tensors(header, source, file.num_bytes))
        self.metadata = Metadata(header.metadata, source)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open and check a file. Raises ModelFileError when it is missing, foreign or damaged."""
        path = Path(path)
        with ExitStack() as stack:
            try:
                _check_path(path)
                file = OpenFile(path)
                stack.callback(file.close)
                _check_magic(path, file.head(HEAD_BYTES))
                opened = cls(file)
            except OSError as error:
                raise ModelFileError(f"{path}: cannot be read: {error.strerror}.") from error
            stack.pop_all()
            return opened


def read_header_of(file: OpenFile, header: Header) -> None:
    """Read a file's header. Raises ModelFileError when it is damaged; then `header` has what comes before."""
    cursor = file.cursor(MAX_HEADER_BYTES)
    cursor.offset = len(GGUF_MAGIC)
    read_header(cursor, header)


def _check_path(path: Path) -> None:
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "no such file"
        raise ModelFileError(f"{path}: {problem}. Give the path of a GGUF model file.")


def _check_magic(path: Path, head: bytes) -> None:
    if not head.startswith(GGUF_MAGIC):
        kind = recognise(head)
        raise ModelFileError(f"{path}: {kind.name}, a GGUF file is needed. {kind.fix}")
    if len(head) < MIN_FILE_BYTES:
        problem = f"{len(head)} bytes long, a GGUF file has at least {MIN_FILE_BYTES}"
        raise ModelFileError(f"{path}: {problem}. Fetch it again.")
