"""What others may have written, as it comes in replies of Redis."""

import re
from collections.abc import Callable
from math import isfinite
from typing import TypeVar

from llama_herd.errors import RecordUnreadable

T = TypeVar("T")


def text(value: bytes) -> str:
    """Bytes that others may have written, as text, whatever their encoding."""
    return value.decode(errors="replace")


def text_or_none(value: bytes | None) -> str | None:
    """The same of what need not be there; None if it is not."""
    return None if value is None else text(value)


_NUMBER = re.compile(rb"-?[0-9]{1,20}")


def number(value: bytes | None) -> int:
    """A whole number that others may have written; 0 for anything else."""
    return int(value) if value is not None and _NUMBER.fullmatch(value) else 0


def number_or_none(value: bytes | None) -> int | None:
    """The same of what need not be there; None if it is not."""
    return None if value is None else number(value)


def score_number(value: bytes) -> int:
    """A sorted set's score, which may be any float, as a whole number."""
    found = float(value)
    return int(found) if isfinite(found) else 0


def rate_per_s(num: int, span_ms: int) -> float:
    """So many within that time, a second. A span of less than a second gives no useful rate."""
    return num / max(span_ms / 1000, 1.0)


def fields_of(reply: dict[bytes, bytes] | list[bytes]) -> dict[bytes, bytes]:
    """A hash as a command or a script answers it."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def read_entries(
    reply: dict[bytes, bytes] | list[bytes], parse: Callable[[str, bytes], T]
) -> tuple[list[T], tuple[str, ...]]:
    """The entries of a hash, and the names of those that cannot be read. parse: of a name and its value."""
    entries, unreadable = list[T](), list[str]()
    for name, raw in fields_of(reply).items():
        try:
            entries.append(parse(text(name), raw))
        except RecordUnreadable:
            unreadable.append(text(name))
    return entries, tuple(sorted(unreadable))
