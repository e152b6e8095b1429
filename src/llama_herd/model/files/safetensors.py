"""Safetensors files: a strict, bounded header, and tensors that stay in the file until they are read.

Source: https://github.com/huggingface/safetensors#format
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any, Self

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from llama_herd.errors import ModelFileError
from llama_herd.model.files.file_kind import HEAD_BYTES, recognise
from llama_herd.model.files.gguf_header import MAX_DIM, MAX_DIMS, MAX_NAME_BYTES, MAX_TENSORS, TensorInfo
from llama_herd.model.files.tensor_file import OpenFile, TensorFile
from llama_herd.model.reading.bounded_reader import Cursor, damaged
from llama_herd.model.reading.json_file import parse_json
from llama_herd.model.reading.metadata import UNQUANTISED, Metadata, quoted

#: The format's own limit is 100 MB; a Llama of 512 layers needs less than one.
MAX_HEADER_BYTES = 16 << 20
#: The header's length and "{}".
MIN_FILE_BYTES = 10

#: Where a file's own notes stand in its header; nothing here reads them.
NOTES_KEY = "__metadata__"

#: The types that are read here, by their names in a header.
DTYPES = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
}


class SafetensorsFile(TensorFile):
    """A safetensors file.

    with SafetensorsFile.open("model.safetensors") as file:
        file.blocks("model.norm.weight")  # uint8 (rows, bytes of a row)
    """

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open and check a file. Raises ModelFileError when it is missing, foreign or damaged."""
        path = Path(path)
        with ExitStack() as stack:
            try:
                file = OpenFile(path)
                stack.callback(file.close)
                _check_kind(path, file.head(HEAD_BYTES))
                opened = cls(file, _read_header(file.cursor(file.num_bytes)))
            except OSError as error:
                raise ModelFileError(f"{path}: cannot be read: {error.strerror}.") from error
            stack.pop_all()
            return opened


def _check_kind(path: Path, head: bytes) -> None:
    kind = recognise(head)
    if kind.magic:
        raise ModelFileError(f"{path}: {kind.name}, a safetensors file is needed. {kind.fix}")
    if len(head) < MIN_FILE_BYTES:
        raise ModelFileError(
            f"{path}: {len(head)} bytes long, a safetensors file has at least {MIN_FILE_BYTES}. Fetch it."
        )


def _read_header(cursor: Cursor) -> dict[str, TensorInfo]:
    """Read and check the header, at which `cursor` stands. Raises ModelFileError, which names the tensor."""
    entries = read_entries(cursor)
    entries.pop(NOTES_KEY, None)
    if len(entries) > MAX_TENSORS:
        raise damaged(cursor.source, f"the header names {len(entries)} tensors, limit {MAX_TENSORS}")
    infos = {name: _tensor_info(name, entry, cursor) for name, entry in entries.items()}
    _check_layout(infos, cursor)
    return infos


def read_entries(cursor: Cursor) -> dict[str, Any]:
    """Read the header, at which `cursor` stands, to its entry for each tensor. Raises ModelFileError."""
    header = cursor.string(MAX_HEADER_BYTES, "header")
    if not header.startswith("{"):
        raise damaged(cursor.source, "header: not JSON: it does not begin with '{'")
    entries: dict[str, Any] = parse_json(header, f"{cursor.source}: header", _unique)
    return entries


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key appears twice")
    return entries


def _tensor_info(name: str, values: object, cursor: Cursor) -> TensorInfo:
    """A tensor's entry in the header; its data begins after the header, where `cursor` stands."""
    if len(name) > MAX_NAME_BYTES:
        raise damaged(cursor.source, f"a tensor's name has {len(name)} characters, limit {MAX_NAME_BYTES}")
    entry = Metadata(values if isinstance(values, dict) else {}, f"{cursor.source}: tensor {quoted(name)}")
    dtype = entry.text("dtype")
    if dtype not in DTYPES:
        raise entry.error("dtype", f"is {quoted(dtype)}, supported are {', '.join(DTYPES)}", UNQUANTISED)
    shape = _integers(entry, "shape")
    if not 1 <= len(shape) <= MAX_DIMS or not all(1 <= dim <= MAX_DIM for dim in shape):
        raise entry.error("shape", f"is {shape}, 1 to {MAX_DIMS} sizes of 1 to {MAX_DIM} are allowed")
    offsets = _integers(entry, "data_offsets")
    num_bytes = math.prod(shape) * GGML_QUANT_SIZES[DTYPES[dtype]][1]
    if len(offsets) != 2 or offsets[1] - offsets[0] != num_bytes:
        raise entry.error("data_offsets", f"are {offsets}, {dtype} of shape {shape} has {num_bytes} bytes")
    return TensorInfo(name, DTYPES[dtype], tuple(shape), cursor.offset + offsets[0], num_bytes)


def _integers(entry: Metadata, key: str) -> list[int]:
    values = entry.get(key)
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise entry.error(key, "is not a list of whole numbers from 0 on")
    return values


def _check_layout(infos: Mapping[str, TensorInfo], cursor: Cursor) -> None:
    """Tensors follow each other without overlap or gap, up to the end of the file and no further."""
    end = cursor.offset
    for info in sorted(infos.values(), key=lambda info: info.offset):
        if info.offset != end:
            raise damaged(
                cursor.source, f"tensor {quoted(info.name)} begins at byte {info.offset}, expected {end}"
            )
        end = info.offset + info.num_bytes
        if end > cursor.end:
            raise damaged(
                cursor.source, f"tensor {quoted(info.name)} ends at byte {end}, the file at {cursor.end}"
            )
    if end < cursor.end:
        raise damaged(cursor.source, f"{cursor.end - end} bytes follow the last tensor, none may")
