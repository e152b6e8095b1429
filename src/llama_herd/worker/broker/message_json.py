"""JSON of Celery's messages, as kombu reads and writes it: with times, decimals, UUIDs and bytes."""

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

from kombu.utils.json import dumps, loads

from llama_herd.tasks.protocol.bounded_json import JsonSize, JsonTooLarge

#: Most objects and arrays of a message: several for each of as many links as one has room for.
MAX_CONTAINERS = 262_144

#: What reading a hostile message can raise, besides the errors of the connection itself.
UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class UnreadableJson(ValueError):
    """A message's JSON cannot be read, or not be written again. Says why, and quotes nothing of it."""


def read_json(text: bytes | str) -> Any:
    """Read JSON as kombu does. Raises UnreadableJson, whatever the decoder of one of kombu's types raises."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    try:
        JsonSize(len(raw), MAX_CONTAINERS, max_depth=len(raw)).add(raw)
        return loads(raw)
    except JsonTooLarge as error:
        raise UnreadableJson(str(error)) from None
    except Exception as error:
        raise UnreadableJson(type(error).__name__) from None


def write_json(value: object) -> str:
    """Write JSON that `read_json` reads back. Raises UnreadableJson, such as for what is too deep."""
    try:
        return str(dumps(value, separators=(",", ":")))
    except Exception as error:
        raise UnreadableJson(type(error).__name__) from None


def as_plain_json(value: Any) -> Any:
    """The value in JSON's own types, as a job's record holds it.

    A decimal becomes a number; times, UUIDs and bytes become texts. What has no such form stays as it is.
    Raises UnreadableJson.
    """
    try:
        return _plain(value)
    except (RecursionError, ValueError) as error:
        raise UnreadableJson(type(error).__name__) from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    write = _PLAIN.get(type(value))
    return value if write is None else write(value)


def _number(value: Decimal) -> int | float:
    """A whole number where a float holds it exactly."""
    number = float(value)
    return (
        int(number) if isfinite(number) and abs(number) < 2**53 and number == value.to_integral() else number
    )


def _text(value: bytes) -> str | bytes:
    """The text in UTF-8, as which kombu writes bytes, too; other bytes stay bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


#: How the values of kombu's own types are written in plain JSON.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    Decimal: _number,
    UUID: str,
    bytes: _text,
}
