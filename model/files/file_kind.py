"""Files that people take for a GGUF file: what each one is, and what to do about it."""

from typing import NamedTuple

_CONVERT = "Convert the model with llama.cpp's convert_hf_to_gguf.py."
_DOWNLOAD = "Download the file itself."


class Foreign(NamedTuple):
    """A kind of file, known by its first bytes."""

    magic: bytes
    kind: str
    fix: str


_KINDS = (
    Foreign(b"PK\x03\x04", "a zip or PyTorch file", _CONVERT),
    Foreign(b"\x80\x02", "a PyTorch pickle", _CONVERT),
    Foreign(b"lmgg", "a GGML file of before GGUF", _CONVERT),
    Foreign(b"fmgg", "a GGMF file of before GGUF", _CONVERT),
    Foreign(b"tjgg", "a GGJT file of before GGUF", _CONVERT),
    Foreign(b"\x1f\x8b", "a gzip archive", "Unpack it first."),
    Foreign(b"version https://git-lfs", "a Git LFS pointer", "Run `git lfs pull`."),
    Foreign(b"<!", "a web page", _DOWNLOAD),
    Foreign(b"<html", "a web page", _DOWNLOAD),
)
_SAFETENSORS = Foreign(b"", "a safetensors file", _CONVERT)
_UNKNOWN = Foreign(b"", "not a model file known here", "A GGUF file begins with the bytes 'GGUF'.")


def recognise(head: bytes) -> Foreign:
    """Name the kind of a file, which is not GGUF, by its first bytes (32 are enough)."""
    if head[8:9] == b"{":  # after the 64-bit length of its JSON header
        return _SAFETENSORS
    return next((kind for kind in _KINDS if head.startswith(kind.magic)), _UNKNOWN)
