"""A request as the endpoints see it: who sends it, and its body, received and parsed within limits."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from llama_herd.tasks.gateway.context import GatewayContext
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.problem import CLOSE, Problem, bad_request
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.tenant_client import TenantClient
from llama_herd.tasks.openai.request_json import parse_request
from llama_herd.tasks.protocol.bounded_json import JsonTooLarge, RepeatedField
from llama_herd.tasks.security.api_keys import KeyRole

T = TypeVar("T")

#: A body counts as one request more for each of these.
BODY_BYTES = 65_536


def context_of(request: Request) -> GatewayContext:
    """The context of the gateway that answers a request."""
    context: GatewayContext = request.app.state.context
    return context


class Call(Request):
    """A request to a route. Once it is admitted, `caller` sends it, and `queue` is its tenant's."""

    caller: Caller
    queue: TenantClient
    _cost = 0.0

    @property
    def context(self) -> GatewayContext:
        return context_of(self)

    async def admit(self, needs: KeyRole) -> None:
        """Identify the caller, check its role, and charge its rate. Raises Problem."""
        self.caller = await self.context.authenticator.admit(self, needs)
        self.charge(1.0)
        self.queue = self.context.client_of(self.caller.tenant)

    def charge(self, cost: float) -> None:
        """Charge a cost of this request to the caller's rate. Raises Problem."""
        self.context.rate_limit.charge(self.caller, cost, self._cost)
        self._cost += cost

    async def read(self, parse: Callable[[dict[str, Any]], T]) -> T:
        """Read the body, and return what `parse` makes of it. Raises Problem, and its errors."""
        settings = self.context.settings
        raw = await read_body(self, settings)
        self.charge(len(raw) / BODY_BYTES)
        return await self.in_turn(lambda: parse(parse_object(raw, settings)))

    async def in_turn(self, parse: Callable[[], T]) -> T:
        """Return what `parse` makes of a body. Raises its errors.

        The event loop stands still while a body is parsed. So bodies are parsed one at a time, and others
        have their turn after each.
        """
        async with self.context.parsing:
            found = parse()
            await asyncio.sleep(0)
            return found


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
    except RepeatedField as error:
        raise bad_request(f"the body {error}", "invalid_json") from None
    except ValueError:
        raise bad_request("the body must be JSON in UTF-8", "invalid_json") from None
    if found is None:
        raise bad_request("the body must be a JSON object", "invalid_json")
    return found
