"""What can be wrong with a GGUF file: one of its fields, keys or tensors, or any of its bytes."""

import random
import struct
from collections.abc import Callable

from tests.hostile.gguf_pieces import Piece, Pieces

NUMBERS = (0, 1, 2, 3, 7, 31, 32, 33, 48, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32)
WIDE_NUMBERS = (2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)
TEXTS = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"../../x\0",
    b"\x1b[2J",
    b"\xed\xa0\x80",
    "\u202e\u2028 \U0001f999".encode(),
    b"A" * 127,
    b"A" * 300,
    b"A" * 70_000,
    b"llama",
    b"general.architecture",
    b"general.alignment",
    b"tokenizer.ggml.tokens",
    b"token_embd.weight",
    b"{% for i in range(10**9) %}x{% endfor %}",
)
Damage = Callable[[Pieces, Pieces, random.Random], None]


def damaged_gguf(good: Pieces, other: Pieces, rng: random.Random) -> bytes:
    """A file with one to three things wrong; some are taken from `other`, a good file too."""
    pieces = good.copy()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_DAMAGES)(pieces, other, rng)
    if rng.random() < 0.5:
        _pad_again(pieces)
    content = pieces.content
    return _cut_short(pieces, content, rng) if rng.random() < 0.15 else content


def _change_field(pieces: Pieces, other: Pieces, rng: random.Random) -> None:
    kind = rng.choice(sorted({piece.kind for piece in pieces.fields if piece.content}))
    piece = rng.choice([piece for piece in pieces.fields if piece.kind == kind and piece.content])
    piece.content = _other_content(piece, rng)


def _other_content(piece: Piece, rng: random.Random) -> bytes:
    content = piece.content
    if piece.kind in ("data", "padding", "key", "name", "text", "item", "numbers"):
        return rng.choice((content[:-1], content + b"\0", rng.randbytes(min(len(content), 64)), content * 2))
    if len(content) not in (4, 8) or rng.random() < 0.1:
        return rng.randbytes(len(content))
    layout = "<I" if len(content) == 4 else "<Q"
    (value,) = struct.unpack(layout, content)
    near = (value + 1, value - 1, value * 2, value // 2, value + 32, value ^ 1 << rng.randrange(32))
    number = rng.choice((*near, rng.choice(NUMBERS), rng.choice(WIDE_NUMBERS), rng.getrandbits(12)))
    return struct.pack(layout, number % (1 << 8 * len(content)))


def _change_text(pieces: Pieces, other: Pieces, rng: random.Random) -> None:
    """Another text with its right length: sound to a reader of fields, wrong to one of models."""
    kind = rng.choice(("key", "name", "text", "item"))
    found = [i for i, piece in enumerate(pieces.fields) if piece.kind == kind]
    if found:
        i = rng.choice(found)
        text = rng.choice((*TEXTS, pieces.fields[rng.choice(found)].content, pieces.fields[i].content + b"x"))
        pieces.fields[i].content, pieces.fields[i - 1].content = text, struct.pack("<Q", len(text))


def _swap_fields(pieces: Pieces, other: Pieces, rng: random.Random) -> None:
    kind = rng.choice(sorted({piece.kind for piece in pieces.fields}))
    a, b = rng.choices([piece for piece in pieces.fields if piece.kind == kind], k=2)
    a.content, b.content = b.content, a.content


def _change_entries(pieces: Pieces, other: Pieces, rng: random.Random) -> None:
    """A key or tensor is missing or appears twice; the count may say so."""
    if not pieces.entries:  # their places changed
        return
    start, end = rng.choice(pieces.entries)
    is_tensor = pieces.fields[start + 1].kind == "name"
    if rng.random() < 0.5:
        kept, change = [], -1
    else:
        kept, change = [Piece(piece.kind, piece.content) for piece in pieces.fields[start:end]] * 2, 1
    pieces.fields[start:end] = kept
    pieces.entries = []
    if rng.random() < 0.8:
        count = next(p for p in pieces.fields if p.kind == ("tensor count" if is_tensor else "key count"))
        count.content = struct.pack("<Q", (int.from_bytes(count.content, "little") + change) % 2**64)


def _change_bytes(pieces: Pieces, other: Pieces, rng: random.Random) -> None:
    """A few bytes of the header become others, wherever they lie."""
    fields = [piece for piece in pieces.fields if piece.content and piece.kind != "data"]
    for _ in range(rng.choice((1, 1, 2, 8))):
        piece = rng.choice(fields)
        content = bytearray(piece.content)
        content[rng.randrange(len(content))] ^= rng.choice((1, 0x80, 0xFF, 1 << rng.randrange(8)))
        piece.content = bytes(content)


def _transplant(pieces: Pieces, other: Pieces, rng: random.Random) -> None:
    """A field, or a whole key or tensor, of another file."""
    if pieces.entries and rng.random() < 0.5:
        (start, end), (first, last) = rng.choice(pieces.entries), rng.choice(other.entries)
        pieces.fields[start:end] = [Piece(piece.kind, piece.content) for piece in other.fields[first:last]]
        pieces.entries = []
        return
    kind = rng.choice(sorted({piece.kind for piece in pieces.fields}))
    theirs = [piece for piece in other.fields if piece.kind == kind]
    ours = [piece for piece in pieces.fields if piece.kind == kind]
    if theirs and ours:
        rng.choice(ours).content = rng.choice(theirs).content


def _swap_bytes(pieces: Pieces, other: Pieces, rng: random.Random) -> None:
    """All numbers of the header as on a big-endian machine."""
    for piece in pieces.fields:
        if piece.kind not in ("data", "padding", "magic", "key", "name", "text", "item", "numbers"):
            piece.content = piece.content[::-1]


_DAMAGES: tuple[Damage, ...] = (
    *(_change_field,) * 8,
    *(_change_text,) * 3,
    *(_swap_fields,) * 2,
    *(_change_entries,) * 2,
    *(_change_bytes,) * 3,
    *(_transplant,) * 2,
    _swap_bytes,
)


def _pad_again(pieces: Pieces) -> None:
    """The data begin where they are looked for although the header has another length."""
    before = sum(len(piece.content) for piece in pieces.fields if piece.kind not in ("padding", "data"))
    for piece in pieces.fields:
        if piece.kind == "padding":
            piece.content = bytes(-before % 32)


def _cut_short(pieces: Pieces, content: bytes, rng: random.Random) -> bytes:
    """A file that ends at the border of a field, or a byte beside it."""
    end = 0
    for piece in pieces.fields[: rng.randrange(len(pieces.fields) + 1)]:
        end += len(piece.content)
    return content[: max(0, end + rng.choice((-1, 0, 0, 1)))]
