"""A body's JSON: its values are counted before it is read, since nothing else can run while it is.

A list of empty objects takes a hundred times as long to read and check as a text of that length.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from llama_herd.tasks.gateway.errors import Problem, bad_request
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.job import PROMPT_ID_BYTES

#: Objects and arrays of a body: its messages, their parts, and whatever tools are made of.
MAX_CONTAINERS = 8192
#: Values and names of a body, beside the ids of a prompt.
MAX_VALUES = 32_768
#: Fields of a body: more than OpenAI's and vLLM's together.
MAX_FIELDS = 128
#: Digits of a whole number. No field takes one of more than 19.
MAX_DIGITS = 100


class Size(NamedTuple):
    """How much JSON has to be made. values: items of arrays and fields of objects, and the names of those."""

    containers: int
    values: int

    @classmethod
    def of(cls, raw: bytes, max_texts: int) -> "Size | None":
        """The size of JSON that need not be valid; None if it has more texts than these."""
        if b"\\" in raw:
            raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        if raw.count(b'"') > 2 * max_texts:
            return None
        outside = b"".join(raw.split(b'"')[::2])
        return cls(outside.count(b"{") + outside.count(b"["), outside.count(b",") + outside.count(b":"))

    def __add__(self, other: object) -> "Size":
        if not isinstance(other, Size):
            return NotImplemented
        return Size(self.containers + other.containers, self.values + other.values)


def object_of(raw: bytes, settings: GatewaySettings) -> dict[str, Any]:
    """The JSON object that a body is. Raises Problem."""
    max_values = settings.max_prompt_bytes // PROMPT_ID_BYTES + MAX_VALUES
    size = _checked(Size(0, 0), raw, max_values)
    try:
        found = json.loads(raw.decode(), parse_int=_int)
    except (ValueError, RecursionError):
        raise bad_request("the body must be JSON in UTF-8", "invalid_json") from None
    if not isinstance(found, dict):
        raise bad_request("the body must be a JSON object", "invalid_json")
    if len(found) > MAX_FIELDS:
        raise _too_many(f"{MAX_FIELDS} fields", len(found))
    for text in _arguments(found):
        size = _checked(size, text.encode(errors="replace"), max_values)
    return found


def _int(digits: str) -> int:
    """A whole number: the time for it grows with the square of its length. Raises Problem."""
    if len(digits) > MAX_DIGITS:
        raise bad_request(
            f"a number must have at most {MAX_DIGITS} digits, got {len(digits)}", "invalid_json"
        )
    return int(digits)


def _checked(size: Size, raw: bytes, max_values: int) -> Size:
    """`size` with that of this JSON. Raises Problem if it is too much."""
    max_texts = max_values + MAX_CONTAINERS
    found = Size.of(raw, max_texts)
    if found is None:
        raise _too_many(f"{max_texts} texts", None)
    size += found
    if size.containers > MAX_CONTAINERS:
        raise _too_many(f"{MAX_CONTAINERS} objects and arrays", size.containers)
    if size.values > max_values:
        raise _too_many(f"{max_values} values and names", size.values)
    return size


def _too_many(limit: str, num: int | None) -> Problem:
    got = "" if num is None else f", got {num}"
    return bad_request(f"the body must have at most {limit}{got}. Fix: send less at once", "too_many_values")


def _arguments(body: Mapping[str, Any]) -> Iterable[str]:
    """JSON within the JSON: the arguments of calls, which are read, too."""
    for message in _dicts(body.get("messages")):
        for call in _dicts(message.get("tool_calls")):
            function = call.get("function")
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


def _dicts(items: object) -> Iterable[dict[str, Any]]:
    return (item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()
