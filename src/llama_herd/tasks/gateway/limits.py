"""Limits of one request: bytes, time, and places among the answers under way."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from llama_herd.tasks.gateway.errors import PASSES, Problem, bad_request
from llama_herd.tasks.gateway.settings import GatewaySettings

#: Nobody waits for the rest of a body that is not wanted.
CLOSE = {"Connection": "close"}


async def read_body(request: Request, settings: GatewaySettings) -> bytes:
    """The body of a request. Raises Problem."""
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
        raise Problem(408, "timeout", "the body did not come in time", headers=CLOSE) from None
    except ClientDisconnect:
        raise bad_request("the body is not whole") from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", f"the body must be at most {limit} bytes", headers=CLOSE)


class Places:
    """Places for answers under way, in all and for each tenant."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._most = settings.gateway_max_streams
        self._most_of_one = settings.gateway_max_tenant_streams
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    @contextmanager
    def taken(self, tenant: str, num: int = 1) -> Iterator[None]:
        """Hold a place, or several. Raises Problem if there is none, or if they are too few."""
        if self._taken[tenant] + num > self._most_of_one:
            message = f"{self._most_of_one} answers are under way for this tenant, the most that may be"
            raise Problem(429, "too_many_streams", message, headers=PASSES)
        if self.num_taken + num > self._most:
            raise Problem(503, "too_many_streams", "too many answers are under way here", headers=PASSES)
        self._taken[tenant] += num
        try:
            yield
        finally:
            self._taken[tenant] -= num
            if not self._taken[tenant]:
                del self._taken[tenant]
