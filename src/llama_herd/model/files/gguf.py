"""GGUF files: a strict, bounded header, and tensors that stay in the file until they are read."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Self

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from llama_herd.errors import ModelFileError
from llama_herd.model.files.file_kind import GGUF_MAGIC, HEAD_BYTES, recognise
from llama_herd.model.files.gguf_header import (
    MAX_HEADER_BYTES,
    MIN_FILE_BYTES,
    OTHER_TYPE,
    REMOVED_TYPES,
    Header,
    MetaValue,
    TensorEntry,
    TensorInfo,
    align,
    read_header,
    type_name,
)
from llama_herd.model.files.tensor_file import OpenFile, TensorFile
from llama_herd.model.reading.bounded_reader import damaged
from llama_herd.model.reading.metadata import Metadata, quoted

_OTHER_ORDER = (
    "Take another file of the same model, or turn a copy of this one: gguf-convert-endian COPY little."
)


def checked_tensors(header: Header, source: str, file_bytes: int) -> dict[str, TensorInfo]:
    """The tensors of a file of so many bytes. Raises ModelFileError unless all can be read."""
    if header.is_big_endian:
        problem = "is a big-endian file, only little-endian ones can be read"
        raise ModelFileError(f"{source}: {problem}. {_OTHER_ORDER}")
    infos = [_tensor_info(entry, header, source) for entry in header.entries.values()]
    _check_layout(infos, header, source, file_bytes)
    return {info.name: info for info in infos}


def _tensor_info(entry: TensorEntry, header: Header, source: str) -> TensorInfo:
    """The checked entry of one tensor, with its place in the file."""
    tensor, columns = f"tensor {quoted(entry.name)}", entry.shape[-1]
    if entry.type_id not in GGML_QUANT_SIZES:
        raise _unknown_type(entry, source)
    type = GGMLQuantizationType(entry.type_id)
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    at = f"{tensor} at byte {entry.read_at}"
    if columns % block_values:
        problem = f"has rows of {columns} values, {type.name} needs a multiple of {block_values}"
        raise damaged(source, f"{at}: {problem}")
    if entry.offset % header.alignment:
        problem = f"has offset {entry.offset}, not a multiple of the alignment {header.alignment}"
        raise damaged(source, f"{at}: {problem}")
    num_bytes = math.prod(entry.shape) // block_values * block_bytes
    return TensorInfo(entry.name, type, entry.shape, header.data_start + entry.offset, num_bytes)


def _unknown_type(entry: TensorEntry, source: str) -> ModelFileError:
    why = "which GGUF no longer has" if entry.type_id in REMOVED_TYPES else "which is not known here"
    tensor = f"tensor {quoted(entry.name)} at byte {entry.read_at}"
    return ModelFileError(f"{source}: {tensor} is of type {type_name(entry.type_id)}, {why}. {OTHER_TYPE}")


def _check_layout(infos: Sequence[TensorInfo], header: Header, source: str, file_bytes: int) -> None:
    """Tensors follow each other without overlap or gap, all inside the file. What comes after is not read."""
    start, alignment, end = header.data_start, header.alignment, 0
    data_bytes = file_bytes - start
    for info in sorted(infos, key=lambda info: info.offset):
        tensor, expected = f"tensor {quoted(info.name)}", align(end, alignment)
        if info.offset - start != expected:
            raise damaged(source, f"{tensor} has offset {info.offset - start}, expected {expected}")
        end = expected + info.num_bytes
        if end > data_bytes:
            raise damaged(source, f"{tensor} ends at data byte {end} of {data_bytes}")


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
