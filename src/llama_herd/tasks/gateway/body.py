"""A request's body: received within limits of bytes and time, and parsed as JSON within limits of values."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from llama_herd.tasks.bounded_json import EMPTY, MAX_FIELDS, MAX_VALUES, JsonTooLarge, parse_bounded
from llama_herd.tasks.gateway.problem import Problem, bad_request
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.job import PROMPT_ID_BYTES

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


def parse_object(raw: bytes, settings: GatewaySettings) -> dict[str, Any]:
    """Parse a body as a JSON object. Raises Problem."""
    max_values = settings.max_prompt_bytes // PROMPT_ID_BYTES + MAX_VALUES
    try:
        found = parse_bounded(raw, max_values)
        if not isinstance(found, dict):
            raise bad_request("the body must be a JSON object", "invalid_json")
        if len(found) > MAX_FIELDS:
            raise JsonTooLarge(f"must have at most {MAX_FIELDS} fields, got {len(found)}")
        size = EMPTY.plus(raw, max_values)
        for text in _call_arguments(found):
            size = size.plus(text.encode(errors="replace"), max_values)
    except JsonTooLarge as error:
        raise bad_request(f"the body {error}. Fix: send less at once", "too_many_values") from None
    except (ValueError, RecursionError):
        raise bad_request("the body must be JSON in UTF-8", "invalid_json") from None
    return found


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
