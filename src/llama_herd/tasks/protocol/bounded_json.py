"""JSON from outside: what it becomes is counted before it is parsed.

Other threads stand still while Python parses: a list of empty objects takes a hundred times as long to read
as a string of that length. So a process that serves bounds what it parses by its shape, not by bytes alone.
"""

import json
from collections import Counter
from typing import Any, NoReturn

#: Objects and arrays of a document: a body's messages, their parts, and whatever tools are made of.
MAX_CONTAINERS = 8192
#: Values and names of a document, beside the ids of a prompt.
MAX_VALUES = 32_768
#: How deep they may lie in each other: twice as deep as any field may be.
MAX_DEPTH = 64
#: Digits of a whole number. No field takes one of more than 19.
MAX_DIGITS = 100

#: Characters of the longest name that an error tells.
MAX_NAME_CHARS = 64

#: Bytes that are counted together. Between two pieces other threads have their turn.
_PIECE_BYTES = 1 << 16
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class JsonTooLarge(ValueError):
    """A document becomes more than it may. The message names both numbers and quotes nothing of it."""


class RepeatedField(ValueError):
    """An object has a field twice, of which Python would keep the last. The message names it."""


class JsonSize:
    """How many Python objects JSON becomes: that of one document, or of several together.

    containers: objects and arrays. values: items of arrays, names and values of fields. Counting raises
    JsonTooLarge at the first piece with which one of them is too much.
    """

    def __init__(
        self, max_values: int, max_containers: int = MAX_CONTAINERS, max_depth: int = MAX_DEPTH
    ) -> None:
        self.containers = 0
        self.values = 0
        self._max_values = max_values
        self._max_containers = max_containers
        self._max_depth = max_depth
        self._num_quotes = 0

    def add(self, raw: bytes) -> None:
        """Count what is in a document, valid or not, without parsing it."""
        depth, is_in_text, start = 0, False, 0
        while start < len(raw) and depth >= 0:
            piece = raw[start : start + _PIECE_BYTES]
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # what it escapes belongs to it
                piece = raw[start : start + len(piece) + 1]
            start += len(piece)
            outside, num_quotes = _outside_texts(piece, is_in_text)
            is_in_text ^= bool(num_quotes % 2)
            self._count(outside, num_quotes)
            depth = self._depth_behind(outside, depth)

    def _count(self, outside: bytes, num_quotes: int) -> None:
        self.containers += outside.count(b"{") + outside.count(b"[")
        self.values += outside.count(b",") + outside.count(b":")
        self._num_quotes += num_quotes
        if self.containers > self._max_containers:
            raise _too_many(self._max_containers, "objects and arrays", self.containers)
        if self.values > self._max_values:
            raise _too_many(self._max_values, "values and names", self.values)
        max_texts = self._max_values + self._max_containers
        if self._num_quotes > 2 * max_texts:
            raise _too_many(max_texts, "strings", self._num_quotes // 2)

    def _depth_behind(self, outside: bytes, depth: int) -> int:
        """How deep it is behind a piece; below 0: no JSON, and not read any further."""
        for mark in outside.translate(None, _NOT_BRACKETS):
            depth += 1 if mark in b"[{" else -1
            if depth > self._max_depth:
                raise JsonTooLarge(f"must be at most {self._max_depth} levels deep, got at least {depth}")
            if depth < 0:
                break
        return depth


def _outside_texts(piece: bytes, is_in_text: bool) -> tuple[bytes, int]:
    """What of a piece lies outside strings, and how many quotes begin or end one."""
    if b"\\" in piece:  # so that each quote that is left begins or ends a string
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = piece.split(b'"')
    return b"".join(parts[is_in_text::2]), len(parts) - 1


def parse_bounded(raw: bytes, size: JsonSize) -> Any:
    """Parse JSON in UTF-8, which is counted in `size` first.

    Raises JsonTooLarge, RepeatedField, UnicodeDecodeError, json.JSONDecodeError, and ValueError for NaN.
    """
    size.add(raw)
    return json.loads(
        raw.decode(),
        parse_int=_bounded_int,
        parse_constant=refuse_constant,
        object_pairs_hook=fields_once,
    )


def fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON by its fields. Raises RepeatedField."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        name = next(name for name, count in counts.items() if count > 1)
        shown = name if name.isidentifier() and len(name) <= MAX_NAME_CHARS else "?"
        raise RepeatedField(f"has the field {shown} twice. Fix: keep one of them")
    return found


def _bounded_int(digits: str) -> int:
    """Parse a whole number. Raises JsonTooLarge: its time grows with the square of its length."""
    if len(digits) > MAX_DIGITS:
        raise JsonTooLarge(f"must have at most {MAX_DIGITS} digits in a number, got {len(digits)}")
    return int(digits)


def refuse_constant(_: str) -> NoReturn:
    """Raise ValueError for NaN and the infinite, which Python would take."""
    raise ValueError


def _too_many(limit: int, what: str, num: int) -> JsonTooLarge:
    return JsonTooLarge(f"must have at most {limit} {what}, got at least {num}")
