"""GGUF files: a strict, bounded header, and tensors that stay in the file until they are read.

Every limit is checked before the loop or read that it bounds, so a bad file costs no more than a good one.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from llama_herd.errors import ModelFileError
from llama_herd.model.files.file_kind import GGUF_MAGIC, HEAD_BYTES, recognise
from llama_herd.model.files.tensor_file import OpenFile, TensorFile, TensorInfo
from llama_herd.model.reading.bounded_reader import Array, BoundedReader, damaged
from llama_herd.model.reading.metadata import Metadata, quoted

#: Version 2 has the layout of version 3; version 1 has 32-bit lengths.
VERSIONS = (2, 3)
MIN_FILE_BYTES = 24
#: The largest known, of 262,144 tokens and 514,906 merges, has 20 MB; a string takes some times its bytes.
MAX_HEADER_BYTES = 64 << 20
MAX_TENSORS = 65_536
MAX_KEYS = 4_096
MAX_KEY_BYTES = 256
MAX_NAME_BYTES = 128
MAX_STRING_BYTES = 1 << 20
#: Of a whole tokenizer.json, which nobody here reads: what counts stands in keys of its own.
MAX_TOKENIZER_JSON_BYTES = 32 << 20
MAX_ARRAY_LENGTH = 1 << 20
MAX_DIMS = 4
MAX_DIM = 1 << 31
MAX_ALIGNMENT = 65_536

ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32

#: Keys of what people say of a file, which need not be UTF-8.
NOTES_PREFIX = "general."
TOKENIZER_JSON_KEY = "tokenizer.huggingface.json"

#: Types of old files, which llama.cpp itself reads no longer.
REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
#: What to do about a type that cannot be read.
OTHER_TYPE = "Take another file of the same model, such as its Q8_0 or Q4_K_M."

_SCALARS: dict[int, np.dtype[np.generic]] = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("?"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}

#: A value of the metadata: arrays of strings are tuples, arrays of numbers are numpy arrays.
MetaValue = bool | int | float | str | tuple[str, ...] | Array

_OTHER_ORDER = (
    "Take another file of the same model, or turn a copy of this one: gguf-convert-endian COPY little."
)


class TensorEntry(NamedTuple):
    """A tensor's entry in the header's table; nothing but its form has been checked."""

    name: str
    type_id: int
    shape: tuple[int, ...]  # torch's order: rows first
    offset: int  # from the start of the tensors' data
    read_at: int  # where it stands in the file


@dataclass
class Header:
    """The header: all of the file before the tensors' data, as far as it has been read."""

    version: int = 0
    is_big_endian: bool = False
    metadata: dict[str, MetaValue] = field(default_factory=dict)
    entries: dict[str, TensorEntry] = field(default_factory=dict)
    data_start: int = 0

    @property
    def alignment(self) -> int:
        alignment = self.metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        assert isinstance(alignment, int)
        return alignment


class GGUFFile(TensorFile):
    """A GGUF file of version 2 or 3, little-endian.

        with GGUFFile.open("model.gguf") as file:
            file.metadata["general.name"]
            file.rows("output_norm.weight")[:]  # uint8 (rows, bytes of a row)

    A row of a Q8_0 tensor is a row of its blocks.
    """

    kind = "GGUF model"
    metadata: Metadata

    def _read(self, file: OpenFile) -> Mapping[str, TensorInfo]:
        header, source, head = Header(), str(file.path), file.read(HEAD_BYTES)
        if not head.startswith(GGUF_MAGIC):
            kind = recognise(head)
            raise ModelFileError(f"{source}: {kind.name}, a GGUF file is needed. {kind.fix}")
        if len(head) < MIN_FILE_BYTES:
            problem = f"{len(head)} bytes long, a GGUF file has at least {MIN_FILE_BYTES}"
            raise ModelFileError(f"{source}: {problem}. Fetch it again.")
        read_header(file, header)
        self.metadata = Metadata(header.metadata, source)
        if header.is_big_endian:
            problem = "is a big-endian file, only little-endian ones can be read"
            raise ModelFileError(f"{source}: {problem}. {_OTHER_ORDER}")
        infos = [_tensor_info(entry, header, source) for entry in header.entries.values()]
        _check_layout(infos, header, source, file.num_bytes)
        return {info.name: info for info in infos}


def read_header(file: OpenFile, header: Header) -> None:
    """Read everything between a file's magic and its tensors' data into `header`, in file order.

    Raises ModelFileError, which names the field, its offset and both numbers; then `header` has what comes
    before. Whether we can do anything with what the file holds is not asked here.
    """
    reader = file.reader(MAX_HEADER_BYTES)
    reader.offset = len(GGUF_MAGIC)
    _read_version(reader, header)
    num_tensors = reader.count(MAX_TENSORS, "tensor count")
    num_keys = reader.count(MAX_KEYS, "key count")
    _read_metadata(reader, num_keys, header.metadata)
    for _ in range(num_tensors):
        name = _read_name(reader, MAX_NAME_BYTES, "tensor name", header.entries)
        header.entries[name] = _read_entry(reader, name)
    header.data_start = align(reader.offset, header.alignment)


def type_name(type_id: int) -> str:
    """The usual name of a tensor's type; an unknown type has its number."""
    if type_id in GGML_QUANT_SIZES:
        return str(GGMLQuantizationType(type_id).name)
    return REMOVED_TYPES.get(type_id, str(type_id))


def _read_version(reader: BoundedReader, header: Header) -> None:
    version = reader.u32("version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    header.is_big_endian = reader.is_swapped = swapped < version and swapped in (1, *VERSIONS)
    header.version = swapped if header.is_big_endian else version
    if header.version not in VERSIONS:
        age = "a newer" if header.version < min(VERSIONS) else "an older"
        raise ModelFileError(
            f"{reader.source}: GGUF version {header.version} cannot be read, only versions 2 and 3 can. "
            f"Take {age} file of the same model."
        )


def _read_metadata(reader: BoundedReader, num_keys: int, metadata: dict[str, MetaValue]) -> None:
    for _ in range(num_keys):
        key = _read_name(reader, MAX_KEY_BYTES, "key", metadata)
        value_type = reader.u32(f"value type of {quoted(key)}")
        if key == ALIGNMENT_KEY:
            metadata[key] = _read_alignment(reader, value_type)
        elif key == TOKENIZER_JSON_KEY and value_type == GGUFValueType.STRING:
            metadata[key] = reader.string(MAX_TOKENIZER_JSON_BYTES, key)
        else:
            is_note = key.startswith(NOTES_PREFIX)
            metadata[key] = _read_value(reader, value_type, quoted(key), "replace" if is_note else "strict")


def _read_name(reader: BoundedReader, limit: int, kind: str, taken: Mapping[str, object]) -> str:
    start = reader.offset
    name = reader.string(limit, kind)
    if not name:
        raise reader.error(kind, f"is empty, 1 to {limit} bytes are needed", reader.offset - start)
    if name in taken:
        raise reader.error(f"{kind} {quoted(name)}", "appears twice", reader.offset - start)
    return name


def _read_alignment(reader: BoundedReader, value_type: int) -> int:
    if value_type != GGUFValueType.UINT32:
        raise reader.error(ALIGNMENT_KEY, f"is of value type {value_type}, UINT32 is needed", 4)
    alignment = reader.u32(ALIGNMENT_KEY)
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        problem = f"{alignment} is not a power of two from 1 to {MAX_ALIGNMENT}"
        raise reader.error(ALIGNMENT_KEY, problem, 4)
    return alignment


def _read_value(reader: BoundedReader, value_type: int, field: str, errors: str) -> MetaValue:
    if value_type == GGUFValueType.STRING:
        return reader.string(MAX_STRING_BYTES, field, errors)
    if value_type == GGUFValueType.ARRAY:
        return _read_array(reader, field)
    (scalar,) = reader.array(_scalar(reader, value_type, field), 1, field)
    if np.isinf(scalar):  # in an array it is the score of a word that no text is to become
        raise reader.error(field, "holds infinity, a finite number is needed", scalar.nbytes)
    if value_type == GGUFValueType.FLOAT32:
        return float(str(scalar))  # the shortest decimal: 1e-05, not 9.999999747378752e-06
    value: bool | int | float = scalar.item()
    return value


def _read_array(reader: BoundedReader, field: str) -> tuple[str, ...] | Array:
    item_type = reader.u32(f"array type of {field}")
    dtype = None if item_type == GGUFValueType.STRING else _scalar(reader, item_type, f"array {field}")
    length = reader.count(MAX_ARRAY_LENGTH, f"array length of {field}")
    if dtype is not None:
        return reader.array(dtype, length, field)
    reader.need(length * 8, field)  # each string has at least its length
    return reader.strings(length, MAX_STRING_BYTES, field)


def _scalar(reader: BoundedReader, value_type: int, field: str) -> np.dtype[np.generic]:
    if value_type not in _SCALARS:
        known = f"{min(GGUFValueType):d} to {max(GGUFValueType):d}, arrays not nested"
        raise reader.error(field, f"value type {value_type} is not known here ({known})", 4)
    return _SCALARS[value_type]


def _read_entry(reader: BoundedReader, name: str) -> TensorEntry:
    tensor, read_at = f"tensor {quoted(name)}", reader.offset
    num_dims = reader.u32(f"number of dimensions of {tensor}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise reader.error(tensor, f"has {num_dims} dimensions, 1 to {MAX_DIMS} are allowed", 4)
    dims = [reader.count(MAX_DIM, f"dimension of {tensor}") for _ in range(num_dims)]
    if 0 in dims:
        raise reader.error(tensor, f"has dimensions {dims}, each must be at least 1", 8 * num_dims)
    type_id, offset = reader.u32(f"type of {tensor}"), reader.u64(f"offset of {tensor}")
    return TensorEntry(name, type_id, tuple(reversed(dims)), offset, read_at)


def align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _tensor_info(entry: TensorEntry, header: Header, source: str) -> TensorInfo:
    """The checked entry of one tensor, with its place in the file."""
    at, columns = f"tensor {quoted(entry.name)} at byte {entry.read_at}", entry.shape[-1]
    if entry.type_id not in GGML_QUANT_SIZES:
        why = "which GGUF no longer has" if entry.type_id in REMOVED_TYPES else "which is not known here"
        raise ModelFileError(f"{source}: {at} is of type {type_name(entry.type_id)}, {why}. {OTHER_TYPE}")
    type = GGMLQuantizationType(entry.type_id)
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    if columns % block_values:
        problem = f"has rows of {columns} values, {type.name} needs a multiple of {block_values}"
        raise damaged(source, f"{at}: {problem}")
    if entry.offset % header.alignment:
        problem = f"has offset {entry.offset}, not a multiple of the alignment {header.alignment}"
        raise damaged(source, f"{at}: {problem}")
    num_bytes = math.prod(entry.shape) // block_values * block_bytes
    return TensorInfo(entry.name, type, entry.shape, header.data_start + entry.offset, num_bytes)


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
