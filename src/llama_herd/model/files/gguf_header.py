"""The header of a GGUF file: what the file says about itself, and where its tensors lie.

Every limit is checked before the loop or read that it bounds, so a bad file costs no more than a good one.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.bounded_reader import Array, Cursor
from llama_herd.model.reading.metadata import quoted

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
MAX_ARRAY_LENGTH = 1 << 20
MAX_DIMS = 4
MAX_DIM = 1 << 31
MAX_ALIGNMENT = 65_536

ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32

#: Keys of what people say of a file, which need not be UTF-8.
NOTES_PREFIX = "general."

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


def read_header(cursor: Cursor, header: Header) -> None:
    """Read everything up to the tensors' data into `header`, in file order; `cursor` stands after the magic.

    Raises ModelFileError, which names the field, its offset and both numbers; then `header` has what comes
    before. Whether we can do anything with what the file holds is not asked here.
    """
    _read_version(cursor, header)
    num_tensors = cursor.count(MAX_TENSORS, "tensor count")
    num_keys = cursor.count(MAX_KEYS, "key count")
    _read_metadata(cursor, num_keys, header.metadata)
    for _ in range(num_tensors):
        name = _read_name(cursor, MAX_NAME_BYTES, "tensor name", header.entries)
        header.entries[name] = _read_entry(cursor, name)
    header.data_start = align(cursor.offset, header.alignment)


def type_name(type_id: int) -> str:
    """The usual name of a tensor's type; an unknown type has its number."""
    if type_id in GGML_QUANT_SIZES:
        return str(GGMLQuantizationType(type_id).name)
    return REMOVED_TYPES.get(type_id, str(type_id))


def _read_version(cursor: Cursor, header: Header) -> None:
    version = cursor.u32("version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    header.is_big_endian = cursor.is_swapped = swapped < version and swapped in (1, *VERSIONS)
    header.version = swapped if header.is_big_endian else version
    if header.version not in VERSIONS:
        age = "a newer" if header.version < min(VERSIONS) else "an older"
        raise ModelFileError(
            f"{cursor.source}: GGUF version {header.version} cannot be read, only versions 2 and 3 can. "
            f"Take {age} file of the same model."
        )


def _read_metadata(cursor: Cursor, num_keys: int, metadata: dict[str, MetaValue]) -> None:
    for _ in range(num_keys):
        key = _read_name(cursor, MAX_KEY_BYTES, "key", metadata)
        value_type = cursor.u32(f"value type of {quoted(key)}")
        if key == ALIGNMENT_KEY:
            metadata[key] = _read_alignment(cursor, value_type)
        else:
            is_note = key.startswith(NOTES_PREFIX)
            metadata[key] = _read_value(cursor, value_type, quoted(key), "replace" if is_note else "strict")


def _read_name(cursor: Cursor, limit: int, kind: str, taken: Mapping[str, object]) -> str:
    start = cursor.offset
    name = cursor.string(limit, kind)
    if not name:
        raise cursor.error(kind, f"is empty, 1 to {limit} bytes are needed", cursor.offset - start)
    if name in taken:
        raise cursor.error(f"{kind} {quoted(name)}", "appears twice", cursor.offset - start)
    return name


def _read_alignment(cursor: Cursor, value_type: int) -> int:
    if value_type != GGUFValueType.UINT32:
        raise cursor.error(ALIGNMENT_KEY, f"is of value type {value_type}, UINT32 is needed", 4)
    alignment = cursor.u32(ALIGNMENT_KEY)
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        problem = f"{alignment} is not a power of two from 1 to {MAX_ALIGNMENT}"
        raise cursor.error(ALIGNMENT_KEY, problem, 4)
    return alignment


def _read_value(cursor: Cursor, value_type: int, field: str, errors: str) -> MetaValue:
    if value_type == GGUFValueType.STRING:
        return cursor.string(MAX_STRING_BYTES, field, errors)
    if value_type == GGUFValueType.ARRAY:
        return _read_array(cursor, field)
    (scalar,) = cursor.array(_scalar(cursor, value_type, field), 1, field)
    if value_type == GGUFValueType.FLOAT32:
        return float(str(scalar))  # the shortest decimal: 1e-05, not 9.999999747378752e-06
    value: bool | int | float = scalar.item()
    return value


def _read_array(cursor: Cursor, field: str) -> tuple[str, ...] | Array:
    item_type = cursor.u32(f"array type of {field}")
    dtype = None if item_type == GGUFValueType.STRING else _scalar(cursor, item_type, f"array {field}")
    length = cursor.count(MAX_ARRAY_LENGTH, f"array length of {field}")
    if dtype is not None:
        return cursor.array(dtype, length, field)
    cursor.need(length * 8, field)  # each string has at least its length
    return cursor.strings(length, MAX_STRING_BYTES, field)


def _scalar(cursor: Cursor, value_type: int, field: str) -> np.dtype[np.generic]:
    if value_type not in _SCALARS:
        known = f"{min(GGUFValueType):d} to {max(GGUFValueType):d}, arrays not nested"
        raise cursor.error(field, f"value type {value_type} is not known here ({known})", 4)
    return _SCALARS[value_type]


def _read_entry(cursor: Cursor, name: str) -> TensorEntry:
    tensor, read_at = f"tensor {quoted(name)}", cursor.offset
    num_dims = cursor.u32(f"number of dimensions of {tensor}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(tensor, f"has {num_dims} dimensions, 1 to {MAX_DIMS} are allowed", 4)
    dims = [cursor.count(MAX_DIM, f"dimension of {tensor}") for _ in range(num_dims)]
    if 0 in dims:
        raise cursor.error(tensor, f"has dimensions {dims}, each must be at least 1", 8 * num_dims)
    type_id, offset = cursor.u32(f"type of {tensor}"), cursor.u64(f"offset of {tensor}")
    return TensorEntry(name, type_id, tuple(reversed(dims)), offset, read_at)


def align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
