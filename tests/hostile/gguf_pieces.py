"""A GGUF file cut into its fields, so that any of them can be changed; told by the format, not by our reader.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from dataclasses import dataclass, field

_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


@dataclass
class Piece:
    """One field: what it is, and its bytes."""

    kind: str
    content: bytes


@dataclass
class Pieces:
    """A file's fields in order, and which of them make up one key or one tensor."""

    fields: list[Piece] = field(default_factory=list)
    entries: list[tuple[int, int]] = field(default_factory=list)  # numbers of fields, from and to

    def copy(self) -> "Pieces":
        return Pieces([Piece(piece.kind, piece.content) for piece in self.fields], list(self.entries))

    @property
    def content(self) -> bytes:
        return b"".join([piece.content for piece in self.fields])


class _Cutter:
    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.pieces = content, 0, Pieces()

    def take(self, kind: str, num_bytes: int) -> bytes:
        taken = self.content[self.at : self.at + num_bytes]
        self.at += num_bytes
        self.pieces.fields.append(Piece(kind, taken))
        return taken

    def integer(self, kind: str, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(kind, struct.calcsize(layout)))[0]
        return value

    def string(self, kind: str) -> None:
        self.take(kind, self.integer(f"{kind} length", "<Q"))

    def value(self, value_type: int) -> None:
        if value_type == _STRING:
            self.string("text")
        elif value_type == _ARRAY:
            item_type = self.integer("item type", "<I")
            length = self.integer("array length", "<Q")
            if item_type == _STRING:
                for _ in range(length):
                    self.string("item")
            else:
                self.take("numbers", length * _SCALAR_BYTES[item_type])
        else:
            self.take("number", _SCALAR_BYTES[value_type])

    def entry(self) -> int:
        return len(self.pieces.fields)


def cut(content: bytes) -> Pieces:
    """The fields of a good file of alignment 32."""
    cutter = _Cutter(content)
    cutter.take("magic", 4)
    cutter.integer("version", "<I")
    num_tensors = cutter.integer("tensor count", "<Q")
    num_keys = cutter.integer("key count", "<Q")
    for _ in range(num_keys):
        start = cutter.entry()
        cutter.string("key")
        cutter.value(cutter.integer("value type", "<I"))
        cutter.pieces.entries.append((start, cutter.entry()))
    for _ in range(num_tensors):
        start = cutter.entry()
        cutter.string("name")
        for _ in range(cutter.integer("number of dimensions", "<I")):
            cutter.integer("dimension", "<Q")
        cutter.integer("tensor type", "<I")
        cutter.integer("offset", "<Q")
        cutter.pieces.entries.append((start, cutter.entry()))
    cutter.take("padding", -cutter.at % 32)
    cutter.take("data", len(content) - cutter.at)
    return cutter.pieces
