"""The herd as `herd status` shows it, within what the caller may see."""

from importlib.metadata import version
from typing import Self

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from llama_herd.tasks.client.job_status import JobStatus, TenantSnapshot
from llama_herd.tasks.client.tenant_status import QueueStatus
from llama_herd.tasks.gateway.context import context_of
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.security.api_keys import KeyRole

#: What only operators see: ids, by which a job can be read, and names of files.
FOR_OPERATORS = ("batches", "dead_letters", "poisoned", "jobs")


class HerdView(BaseModel):
    """A tenant's queues and workers now. What the key's role may not see is null."""

    tenant: str = Field(description="The caller's.")
    role: KeyRole = Field(description="The caller's.")
    now_ms: int = Field(description="The time of all this by the clock of Redis, in unix milliseconds.")
    queue: str = Field(description="The queue of the gateway's default model.")
    depth: int = Field(description="Messages in that queue.")
    pending: int = Field(description="Jobs that wait.")
    running: int = Field(description="Jobs that run.")
    queues: list[QueueStatus] = Field(description="All queues that hold anything or are served.")
    workers: list[WorkerStatus] = Field(description="The last reports of all live workers.")
    batches: list[BatchStatus] | None = Field(description="Those that run, or ended within the hour.")
    dead_letters: int | None = Field(description="Messages that nobody could read.")
    poisoned: int | None = Field(description="Jobs that were given up.")
    jobs: list[JobStatus] | None = Field(
        description="The oldest of the running and of the waiting jobs, up to 20 of each."
    )

    @classmethod
    def from_snapshot(cls, caller: Caller, found: TenantSnapshot) -> Self:
        seen = {name: getattr(found.status, name) for name in cls.model_fields if hasattr(found.status, name)}
        seen["jobs"] = [*found.running, *found.waiting]
        if not caller.role.may(KeyRole.OPERATOR):
            seen |= dict.fromkeys(FOR_OPERATORS)
        return cls(tenant=caller.tenant, role=caller.role, **seen)


class Version(BaseModel):
    """Which version of llama-herd answers."""

    version: str = Field(description="That of the package.")


async def show_version(request: Request) -> Response:
    """The version of this gateway, as vLLM tells its own."""
    await context_of(request).admit(request, KeyRole.SUBSCRIBER)
    return Response(Version(version=version("llama-herd")).model_dump_json(), media_type="application/json")


async def show_herd(request: Request) -> Response:
    """The queues, the workers, and who waits how long."""
    caller, client = await context_of(request).admit(request, KeyRole.SUBSCRIBER)
    found = await client.snapshot()
    told = await make_aside(lambda: HerdView.from_snapshot(caller, found).model_dump_json())
    return Response(told, media_type="application/json")
