"""Kinds of files that people give as a model, and the fix for one that is none."""

from typing import NamedTuple

#: The first bytes of a file that tell its kind.
HEAD_BYTES = 32

GGUF_MAGIC = b"GGUF"

_OTHER_FORMAT = (
    "Take the model's GGUF file, or its folder with config.json, tokenizer.json and safetensors: "
    "hf download OWNER/NAME --local-dir NAME."
)
_NEWER = "Take the GGUF file of the same model."
_UNPACK = "Unpack it first."
_ITSELF = "Fetch the file itself: hf download OWNER/NAME FILE."


class FileKind(NamedTuple):
    """A kind of file, known by its first bytes."""

    magic: bytes
    name: str
    fix: str


GGUF = FileKind(GGUF_MAGIC, "a GGUF file", "Give its own path as the model.")
SAFETENSORS = FileKind(b"", "a safetensors file", "Give the folder in which it lies beside config.json.")
_KINDS = (
    GGUF,
    FileKind(b"PK\x03\x04", "a zip or PyTorch file", _OTHER_FORMAT),
    FileKind(b"\x80\x02", "a PyTorch pickle", _OTHER_FORMAT),
    FileKind(b"\x89HDF", "an HDF5 file", _OTHER_FORMAT),
    FileKind(b"lmgg", "a GGML file, older than GGUF", _NEWER),
    FileKind(b"fmgg", "a GGMF file, older than GGUF", _NEWER),
    FileKind(b"tjgg", "a GGJT file, older than GGUF", _NEWER),
    FileKind(b"\x1f\x8b", "a gzip archive", _UNPACK),
    FileKind(b"BZh", "a bzip2 archive", _UNPACK),
    FileKind(b"\xfd7zXZ", "an xz archive", _UNPACK),
    FileKind(b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    FileKind(b"version https://git-lfs", "a Git LFS pointer", f"{_ITSELF[:-1]}, or run `git lfs pull`."),
    FileKind(b"<!", "a web page", _ITSELF),
    FileKind(b"<html", "a web page", _ITSELF),
    FileKind(
        bytes(HEAD_BYTES), "a file that begins with zeros, like an unfinished download", "Fetch it again."
    ),
)
_EMPTY = FileKind(b"", "an empty file", "Fetch it again.")
_UNKNOWN = FileKind(b"", "not a model file known here", "A GGUF file begins with the bytes 'GGUF'.")


def recognise(head: bytes) -> FileKind:
    """The kind of a file by its first `HEAD_BYTES` bytes."""
    if head[8:9] == b"{":  # after the 64-bit length of its JSON header
        return SAFETENSORS
    if not head:
        return _EMPTY
    return next((kind for kind in _KINDS if head.startswith(kind.magic)), _UNKNOWN)
