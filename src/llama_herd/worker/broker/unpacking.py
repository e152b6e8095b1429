"""Unpacks compressed messages up to the longest allowed: a few kilobytes could become gigabytes."""

import bz2
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu import compression

from llama_herd.worker.broker.queue_channel import TooLong

#: Most bytes of lzma's dictionary, whose size the message sets; the default preset and lower ones need less.
LZMA_BYTES = 16 << 20

#: Makers of objects with `decompress` and `eof`, by kombu's names. Other formats are not unpacked.
FORMATS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=LZMA_BYTES),
}


def accept_compression(max_bytes: int) -> None:
    """Have kombu unpack messages, but none to more than `max_bytes`."""
    for name, make in FORMATS.items():
        encode, _ = compression.get_encoder(name)
        compression.register(encode, partial(unpack, make, max_bytes), name)


def unpack(make: Callable[[], Any], max_bytes: int, packed: bytes) -> bytes:
    """Raises TooLong, or the format's own error for broken input."""
    unpacker = make()
    unpacked: bytes = unpacker.decompress(packed, max_length=max_bytes + 1)
    if len(unpacked) > max_bytes:
        raise TooLong
    if not unpacker.eof:
        raise EOFError
    return unpacked
