"""The herd as `herd status` shows it to the caller, whether a job would be run, and pauses and drains."""

import asyncio
from typing import Self

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from llama_herd.errors import HerdError, NotPermitted
from llama_herd.extras import own_version
from llama_herd.tasks.client.job_status import JobStatus, TenantSnapshot
from llama_herd.tasks.client.pausing import drain_worker, pause_queue, resume_queue, undo_drain
from llama_herd.tasks.client.tenant_status import QueueStatus
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.context import GatewayContext
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.queries import seconds_of
from llama_herd.tasks.ledger.stored_api_keys import all_keys
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.health import Health
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.security.api_keys import KeyRole

#: What only operators see: ids, by which a job can be read, names of files, and what is theirs to mend.
FOR_OPERATORS = ("batches", "dead_letters", "poisoned", "kept_bytes", "kept_limit_bytes", "jobs")


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
    kept_bytes: int | None = Field(description="What ended jobs keep of Redis.")
    kept_limit_bytes: int | None = Field(
        description="How much they may keep before new jobs are refused; 0: no limit."
    )
    owed: int = Field(description="Jobs that have ended, and whose result waits for Celery's own Redis.")
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


async def show_version(_: Call) -> Version:
    """The version of this gateway."""
    return Version(version=own_version())


async def show_herd(call: Call) -> Response:
    """The queues, the workers, and who waits how long. Ids of jobs are for operators only."""
    found = await call.queue.snapshot()
    told = await make_aside(lambda: HerdView.from_snapshot(call.caller, found).model_dump_json())
    return Response(told, media_type="application/json")


async def live(_: Call) -> Response:
    """200 as long as the process answers. Needs no key."""
    return _health_answer(Health.live())


async def ready(call: Call) -> Response:
    """200 when Redis is there and a worker serves, else 503. Needs no key."""
    return _health_answer(Health.ready(await _unready_reason(call.context)))


async def health(call: Call) -> Response:
    """Whether a job would be run, as /health/ready tells it. Needs no key."""
    return await ready(call)


def _health_answer(found: Health) -> Response:
    return JSONResponse(found.model_dump(exclude_none=True), found.http_status)


#: A Redis that does not answer within this time is of no use to a job either, and probes wait no longer.
READY_S = 5.0
#: Who asks may be anybody, so it names no tenant.
DENIED = "the gateway's user of Redis lacks a right to a tenant. Fix: herd acl"


async def _unready_reason(context: GatewayContext) -> str:
    """Why a job would not be run; empty if one would."""
    if context.is_closing.is_set():
        return "the gateway is shutting down"
    asking = asyncio.create_task(_reason_in_redis(context))
    try:
        done, _ = await asyncio.wait([asking], timeout=READY_S)
    finally:
        asking.cancel()  # nobody waits until redis-py obeys
    return asking.result() if done else "Redis does not answer"


async def _reason_in_redis(context: GatewayContext) -> str:
    reason = "no worker is ready"
    try:
        stored = await context.connections.run(all_keys())
        for tenant in {context.settings.tenant, *(key.tenant for key in stored.keys)}:
            try:
                if any(worker.state == "ready" for worker in await context.client_of(tenant).workers()):
                    return ""
            except Problem:  # other tenants may be served
                reason = DENIED
    except NotPermitted:
        return "the gateway's user of Redis may not look up keys"
    except HerdError:
        return "Redis is away"
    return reason


class QueuePause(BaseModel):
    """Whether workers take jobs of a model's queue."""

    model: str = Field(description="The model.")
    is_paused: bool = Field(description="Whether they take none.")
    paused_until_ms: int | None = Field(
        description="When that ends by itself, in unix milliseconds; null: it does not, or there is no pause."
    )


class WorkerDrain(BaseModel):
    """Whether a worker takes jobs of the tenant."""

    worker: str = Field(description="Its name.")
    is_drained: bool = Field(description="Whether it takes none; `GET /v1/herd` tells when it has none left.")
    drained_until_ms: int | None = Field(
        description="When that ends by itself, in unix milliseconds; null: it does not, or there is no drain."
    )


async def pause_model(call: Call) -> QueuePause:
    """Let no worker take another job of a model. Jobs are still accepted, and running ones go on."""
    model = call.path_params["model"]
    until_ms = await call.queue.run(pause_queue(call.caller.tenant, model, seconds_of(call, "for_s")))
    return QueuePause(model=model, is_paused=True, paused_until_ms=until_ms)


async def resume_model(call: Call) -> QueuePause:
    """Let workers take jobs of a model again."""
    model = call.path_params["model"]
    await call.queue.run(resume_queue(call.caller.tenant, model))
    return QueuePause(model=model, is_paused=False, paused_until_ms=None)


async def drain(call: Call) -> WorkerDrain:
    """Let a worker take no more jobs of the tenant. It ends those that it has, or hands them back."""
    name = call.path_params["name"]
    until_ms = await call.queue.run(drain_worker(call.caller.tenant, name, seconds_of(call, "for_s")))
    return WorkerDrain(worker=name, is_drained=True, drained_until_ms=until_ms)


async def resume_worker(call: Call) -> WorkerDrain:
    """Let a drained worker take jobs again."""
    name = call.path_params["name"]
    await call.queue.run(undo_drain(call.caller.tenant, name))
    return WorkerDrain(worker=name, is_drained=False, drained_until_ms=None)
