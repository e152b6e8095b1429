"""Messages that are longer than the longest allowed, as they come or once they are unpacked.

A few compressed kilobytes could become gigabytes. A message that is too long gets a short stand-in, so
that its job ends with an error.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from kombu import compression

from llama_herd.tasks.protocol.job import is_job_id
from llama_herd.tasks.protocol.message import Envelope, MessageHead, is_job_task

#: Most bytes of lzma's dictionary, whose size the message sets; the default preset and lower ones need less.
LZMA_BYTES = 16 << 20

#: The logarithm of the most bytes of zstd's window, whose size the message sets: as much.
ZSTD_WINDOW_LOG = 24


def _formats() -> dict[str, Callable[[], Any]]:
    """Makers of objects with `decompress` and `eof`, by kombu's names. Other formats are not unpacked."""
    found: dict[str, Callable[[], Any]] = {
        "application/x-gzip": zlib.decompressobj,
        "application/x-bz2": bz2.BZ2Decompressor,
        "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=LZMA_BYTES),
    }
    zstd: Any = getattr(compression, "zstd", None)
    if hasattr(zstd, "DecompressionParameter"):  # Python's own or its backport, not the older zstandard
        options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
        found["application/zstd"] = partial(zstd.ZstdDecompressor, options=options)
    return found


#: The header of a stand-in: how long the message was.
NUM_BYTES = "herd_num_bytes"


class TooLong(ValueError):
    """A message is longer than HERD_MAX_MESSAGE_BYTES. Its dead letter names this class."""


def accept_compression(max_bytes: int) -> None:
    """Have kombu unpack messages, but none to more than `max_bytes`."""
    for name, make in _formats().items():
        encode, _ = compression.get_encoder(name)
        compression.register(encode, partial(unpack_bounded, make, max_bytes), name)


def unpack_bounded(make: Callable[[], Any], max_bytes: int, packed: bytes) -> bytes:
    """Unpack a message. Raises TooLong, or the format's own error for broken input."""
    unpacker = make()
    unpacked: bytes = unpacker.decompress(packed, max_length=max_bytes + 1)
    if len(unpacked) > max_bytes:
        raise TooLong
    if not unpacker.eof:
        raise EOFError
    return unpacked


def short_stand_in(raw: bytes, queue: str) -> bytes | None:
    """A short message in place of a long one, of the same job; None if that names no job."""
    head = MessageHead.find_in(raw)
    if not is_job_task(head.task) or head.task_id is None or not is_job_id(head.task_id):
        return None
    envelope = Envelope.for_unread(head.task_id, queue, {"task": head.task, NUM_BYTES: len(raw)})
    return envelope.with_tag(str(uuid4())).encode()
