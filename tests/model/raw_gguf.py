"""GGUF files put together byte by byte, so that a test can make any part of one wrong."""

import struct

from gguf import GGUFValueType

DATA = bytes(range(32))


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def key(name: str | bytes, value_type: int, payload: bytes) -> bytes:
    return string(name) + u32(value_type) + payload


def array(name: str, item_type: int, length: int, payload: bytes) -> bytes:
    return key(name, GGUFValueType.ARRAY, u32(item_type) + u64(length) + payload)


def tensor(
    name: str | bytes = "w",
    dims: tuple[int, ...] = (8,),
    type: int = 0,
    offset: int = 0,
    num_dims: int | None = None,
) -> bytes:
    """An entry of the tensor table; by default `DATA` as eight values of F32."""
    sizes = b"".join(map(u64, dims))
    return string(name) + u32(len(dims) if num_dims is None else num_dims) + sizes + u32(type) + u64(offset)


def raw_gguf(
    *keys: bytes,
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """A whole file; the counts are those of `tensors` and `keys`, unless they are given."""
    tensor_count = u64(len(tensors) if num_tensors is None else num_tensors)
    key_count = u64(len(keys) if num_keys is None else num_keys)
    header = b"GGUF" + u32(version) + tensor_count + key_count + b"".join(keys) + b"".join(tensors)
    padding = -len(header) % 32 if tensors else 0
    return header + bytes(padding) + data
