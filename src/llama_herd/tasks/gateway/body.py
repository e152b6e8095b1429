"""A request's body: received within limits of bytes and time, and parsed as JSON within limits of values.

Values are counted before the body is parsed, since the event loop stands still meanwhile: a list of empty
objects takes a hundred times as long to read and check as a string of that length.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request

from llama_herd.tasks.gateway.problem import Problem, bad_request
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
#: A header of the answer: the rest of a body that is refused is not read, so the connection cannot go on.
CLOSE = {"Connection": "close"}


async def read_body(request: Request, settings: GatewaySettings) -> bytes:
    """Receive the body of a request, all of it within `gateway_idle_s`. Raises Problem."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(
            415, "unsupported_encoding", "the body must not be compressed", "Content-Encoding", CLOSE
        )
    limit = settings.gateway_max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:19]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(settings.gateway_idle_s):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise Problem(
            408, "timeout", f"the whole body must come within {settings.gateway_idle_s:g} s", headers=CLOSE
        ) from None
    except ClientDisconnect:
        raise bad_request("the connection ended before the body did") from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", f"the body must be at most {limit} bytes", headers=CLOSE)


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

    def __add__(self, other: object) -> "JsonSize":
        if not isinstance(other, JsonSize):
            return NotImplemented
        return JsonSize(self.containers + other.containers, self.values + other.values)


def parse_object(raw: bytes, settings: GatewaySettings) -> dict[str, Any]:
    """Parse a body as a JSON object. Raises Problem."""
    max_values = settings.max_prompt_bytes // PROMPT_ID_BYTES + MAX_VALUES
    size = _add_checked(JsonSize(0, 0), raw, max_values)
    try:
        found = json.loads(raw.decode(), parse_int=_bounded_int)
    except (ValueError, RecursionError):
        raise bad_request("the body must be JSON in UTF-8", "invalid_json") from None
    if not isinstance(found, dict):
        raise bad_request("the body must be a JSON object", "invalid_json")
    if len(found) > MAX_FIELDS:
        raise _too_many(f"{MAX_FIELDS} fields", len(found))
    for text in _call_arguments(found):
        size = _add_checked(size, text.encode(errors="replace"), max_values)
    return found


def _bounded_int(digits: str) -> int:
    """Parse a whole number. Raises Problem if it is long: the time grows with the square of its length."""
    if len(digits) > MAX_DIGITS:
        raise bad_request(
            f"a number must have at most {MAX_DIGITS} digits, got {len(digits)}", "invalid_json"
        )
    return int(digits)


def _add_checked(size: JsonSize, raw: bytes, max_values: int) -> JsonSize:
    """Add the size of `raw`, which is JSON, to `size`. Raises Problem if the sum is too large."""
    max_strings = max_values + MAX_CONTAINERS
    found = JsonSize.measure(raw, max_strings)
    if found is None:
        raise _too_many(f"{max_strings} strings", None)
    size += found
    if size.containers > MAX_CONTAINERS:
        raise _too_many(f"{MAX_CONTAINERS} objects and arrays", size.containers)
    if size.values > max_values:
        raise _too_many(f"{max_values} values and names", size.values)
    return size


def _too_many(limit: str, num: int | None) -> Problem:
    got = "" if num is None else f", got {num}"
    return bad_request(f"the body must have at most {limit}{got}. Fix: send less at once", "too_many_values")


def _call_arguments(body: Mapping[str, Any]) -> Iterable[str]:
    """The JSON within the JSON: arguments of tool calls are strings that are parsed, too."""
    for message in _dicts(body.get("messages")):
        for call in _dicts(message.get("tool_calls")):
            function = call.get("function")
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


def _dicts(items: object) -> Iterable[dict[str, Any]]:
    return (item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()
