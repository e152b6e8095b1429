"""Files of text, as the bytes of UTF-8: unpacked, and decoded where they are in another encoding."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from llama_herd.errors import BadInput

_PIECE_BYTES = 1 << 16
#: How files begin that are not in UTF-8, by what they are. UTF-32's mark begins as UTF-16's does.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def check_encoding(encoding: str) -> None:
    """Raise BadInput unless Python knows this encoding of texts."""
    try:
        "".encode(encoding)
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError):
        raise BadInput(
            f"--encoding {encoding!r}: no such encoding. Fix: name one, as cp1252, latin-1 or utf-16"
        ) from None


@contextmanager
def open_text(name: str, encoding: str | None = None) -> Iterator[BinaryIO]:
    """The unpacked bytes of a file, in UTF-8; `encoding`: that of the file, None for UTF-8.

    Raises BadInput if the file is damaged, or its text is in another encoding. Where its reader goes on
    after bytes that are no UTF-8, only the file's beginning tells of it.
    """
    with _open_unpacked(name) as stream:
        try:
            if encoding is None:
                _check_begin(name, stream.peek(4)[:4])  # type: ignore[attr-defined]
                yield stream
            else:
                yield io.BufferedReader(_Utf8Stream(stream, encoding))
        except UnicodeError as error:
            raise _undecodable(name, encoding, error) from None


@contextmanager
def _open_unpacked(name: str) -> Iterator[BinaryIO]:
    try:
        if name.endswith(".gz"):
            with gzip.open(name, "rb") as packed:
                yield packed  # type: ignore[misc]
        else:
            with open(name, "rb") as plain:
                yield plain
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "damaged or cut off"
        raise BadInput(f"{name} cannot be read: {reason}") from None


class _Utf8Stream(io.RawIOBase):
    """The text of a stream in another encoding, as UTF-8. Reading raises UnicodeError."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = b"."
        while not self._ready and piece:
            piece = self._stream.read(_PIECE_BYTES)
            self._ready = self._decoder.decode(piece, final=not piece).encode(errors="surrogatepass")
        room = memoryview(buffer)
        taken, self._ready = self._ready[: len(room)], self._ready[len(room) :]
        room[: len(taken)] = taken
        return len(taken)


def _check_begin(name: str, begin: bytes) -> None:
    """Raise BadInput if a file begins as one in UTF-16 or UTF-32 does, with a mark or without."""
    found = next((found for mark, found in _MARKS.items() if begin.startswith(mark)), None)
    if found is None and b"\0" in begin[:2]:
        found = "utf-16-be" if begin.startswith(b"\0") else "utf-16-le"
    if found is not None:
        raise BadInput(f"{name} is not UTF-8 text, but {found.upper()}. Fix: --encoding {found}")


def _undecodable(name: str, encoding: str | None, error: UnicodeError) -> BadInput:
    if encoding is not None:
        reason = error.reason if isinstance(error, UnicodeDecodeError) else error
        return BadInput(f"{name} is not text in {encoding}: {reason}. Fix: name its encoding by --encoding")
    line, byte = _first_undecodable(name)
    return BadInput(
        f"{name} is not UTF-8 text: line {line:,} has the byte 0x{byte:02X}. Fix: name its encoding, such as "
        "--encoding cp1252 (of Windows and Excel), latin-1 or shift_jis; or mend that line"
    )


def _first_undecodable(name: str) -> tuple[int, int]:
    """The line and the value of the first byte that is no UTF-8."""
    decoder, line, piece = codecs.getincrementaldecoder("utf-8")(), 1, b"."
    with _open_unpacked(name) as stream:
        while piece:
            piece = stream.read(_PIECE_BYTES)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                return line + error.object[: error.start].count(b"\n"), error.object[error.start]
            line += piece.count(b"\n")
    raise BadInput(f"{name} has changed while it was read. Fix: run the same command again")
