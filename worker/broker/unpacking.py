"""Compressed messages, unpacked as far as a message may be long: a few kilobytes could become gigabytes."""

import bz2
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu import compression

from llama_herd.worker.broker.queue_channel import TooLong

#: The dictionary of lzma, which the message names; its presets up to the usual one need less.
LZMA_BYTES = 16 << 20

#: By kombu's name: gives an object with `decompress` and `eof`. What is not here is not unpacked.
FORMATS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=LZMA_BYTES),
}


def accept_compression(max_bytes: int) -> None:
    """Have kombu unpack messages, but none that is longer than `max_bytes`."""
    for name, make in FORMATS.items():
        encode, _ = compression.get_encoder(name)
        compression.register(encode, partial(unpack, make, max_bytes), name)


def unpack(make: Callable[[], Any], max_bytes: int, packed: bytes) -> bytes:
    """Raises TooLong, or what the format has for broken input."""
    unpacker = make()
    unpacked: bytes = unpacker.decompress(packed, max_length=max_bytes + 1)
    if len(unpacked) > max_bytes:
        raise TooLong
    if not unpacker.eof:
        raise EOFError
    return unpacked
