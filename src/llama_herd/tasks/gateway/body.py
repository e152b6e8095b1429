"""A request's body: received within limits of bytes and time, and parsed as JSON within limits of values."""

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from llama_herd.tasks.gateway.problem import Problem, bad_request
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.openai.request_json import parse_request
from llama_herd.tasks.protocol.bounded_json import JsonTooLarge

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
    try:
        found = parse_request(raw, settings.max_prompt_bytes)
    except JsonTooLarge as error:
        raise bad_request(f"the body {error}. Fix: send less at once", "too_many_values") from None
    except ValueError:
        raise bad_request("the body must be JSON in UTF-8", "invalid_json") from None
    if found is None:
        raise bad_request("the body must be a JSON object", "invalid_json")
    return found
