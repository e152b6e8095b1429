"""JSON from outside: what it becomes is counted before it is parsed, and one large text is parsed at a time.

Other threads stand still while Python parses: a list of empty objects takes a hundred times as long to read
as a string of that length. So what a process that serves parses is bounded by its shape, too.
"""

import json
from contextlib import nullcontext
from threading import Lock
from typing import Any, NamedTuple, NoReturn

#: Objects and arrays of a document: a body's messages, their parts, and whatever tools are made of.
MAX_CONTAINERS = 8192
#: Values and names of a document, beside the ids of a prompt.
MAX_VALUES = 32_768
#: Fields of a request: more than OpenAI's and vLLM's together.
MAX_FIELDS = 128
#: Digits of a whole number. No field takes one of more than 19.
MAX_DIGITS = 100

#: Texts of which several are never parsed at a time: each would keep the others from letting go.
_LARGE_BYTES = 65_536
_PARSING = Lock()


class JsonTooLarge(ValueError):
    """A document becomes more than it may. The message names both numbers and quotes nothing of it."""


class JsonSize(NamedTuple):
    """How many Python objects a JSON document becomes.

    `containers`: objects and arrays. `values`: items of arrays, names and values of fields.
    """

    containers: int
    values: int

    @classmethod
    def measure(cls, raw: bytes, max_strings: int) -> "JsonSize | None":
        """Count in JSON, valid or not, without parsing it; None if it has more than `max_strings` strings."""
        if b"\\" in raw:  # so that each quote that is left begins or ends a string
            raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        if raw.count(b'"') > 2 * max_strings:
            return None
        outside = b"".join(raw.split(b'"')[::2])
        return cls(outside.count(b"{") + outside.count(b"["), outside.count(b",") + outside.count(b":"))

    def plus(self, raw: bytes, max_values: int) -> "JsonSize":
        """This size with that of `raw`, which is JSON, added. Raises JsonTooLarge if the sum is too large."""
        max_strings = max_values + MAX_CONTAINERS
        found = JsonSize.measure(raw, max_strings)
        if found is None:
            raise JsonTooLarge(f"must have at most {max_strings} strings")
        total = JsonSize(self.containers + found.containers, self.values + found.values)
        if total.containers > MAX_CONTAINERS:
            raise _too_many(MAX_CONTAINERS, "objects and arrays", total.containers)
        if total.values > max_values:
            raise _too_many(max_values, "values and names", total.values)
        return total


EMPTY = JsonSize(0, 0)


def parse_bounded(raw: bytes, max_values: int) -> Any:
    """Parse JSON in UTF-8 of a bounded size.

    Raises JsonTooLarge, UnicodeDecodeError, json.JSONDecodeError, RecursionError for what is too deep, and
    ValueError for NaN.
    """
    with nullcontext() if len(raw) < _LARGE_BYTES else _PARSING:
        EMPTY.plus(raw, max_values)
        return json.loads(raw.decode(), parse_int=_bounded_int, parse_constant=_refuse_constant)


def _bounded_int(digits: str) -> int:
    """Parse a whole number. Raises JsonTooLarge: its time grows with the square of its length."""
    if len(digits) > MAX_DIGITS:
        raise _too_many(MAX_DIGITS, "digits in a number", len(digits))
    return int(digits)


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError


def _too_many(limit: int, what: str, num: int) -> JsonTooLarge:
    return JsonTooLarge(f"must have at most {limit} {what}, got {num}")
