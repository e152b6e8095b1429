"""Is this process alive, and would a job be run?"""

from typing import Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_herd.errors import HerdError, NotPermitted
from llama_herd.tasks.gateway.context import GatewayContext, context_of
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.ledger.stored_api_keys import all_keys


class Health(BaseModel):
    """Whether this process is alive, or a job would be run."""

    status: Literal["live", "ready", "not ready"] = Field(
        description="What was asked for, or that it is not."
    )
    reason: str | None = Field(default=None, description="Why it is not ready.")

    def answer(self, status: int = 200) -> Response:
        return JSONResponse(self.model_dump(exclude_none=True), status)


async def live(request: Request) -> Response:
    """200 as long as the process answers."""
    await context_of(request).authenticator.check_key(request)
    return Health(status="live").answer()


async def ready(request: Request) -> Response:
    """200 when Redis is there and a worker serves; else 503 with the reason."""
    await context_of(request).authenticator.check_key(request)
    reason = await _unready_reason(context_of(request))
    if reason:
        return Health(status="not ready", reason=reason).answer(503)
    return Health(status="ready").answer()


async def _unready_reason(context: GatewayContext) -> str:
    """Why a job would not be run; empty if one would."""
    clients = context.clients
    if context.is_closing.is_set():
        return "the gateway is shutting down"
    reason = "no worker is ready"
    try:
        stored = await clients.connections.run(all_keys())
        for tenant in {context.settings.tenant, *(key.tenant for key in stored.keys)}:
            try:
                if any(worker.state == "ready" for worker in await clients.for_tenant(tenant).workers()):
                    return ""
            except Problem as problem:  # other tenants may be served
                reason = problem.message
    except NotPermitted:
        return "the gateway's user of Redis may not look up keys"
    except HerdError:
        return "Redis is away"
    return reason
