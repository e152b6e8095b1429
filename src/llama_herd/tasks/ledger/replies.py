"""What others may have written, as it comes in replies of Redis."""

import re
from math import isfinite


def text(value: bytes) -> str:
    """Bytes that others may have written, as text, whatever their encoding."""
    return value.decode(errors="replace")


_NUMBER = re.compile(rb"-?[0-9]{1,20}")


def number(value: bytes | None) -> int:
    """A whole number that others may have written; 0 for anything else."""
    return int(value) if value is not None and _NUMBER.fullmatch(value) else 0


def score_number(value: bytes) -> int:
    """A sorted set's score, which may be any float, as a whole number."""
    found = float(value)
    return int(found) if isfinite(found) else 0


def fields_of(reply: dict[bytes, bytes] | list[bytes]) -> dict[bytes, bytes]:
    """A hash as a command or a script answers it."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
