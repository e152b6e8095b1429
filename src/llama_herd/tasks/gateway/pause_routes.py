"""What operators do from afar: pause a queue and resume it, drain a worker and let it take jobs again."""

from pydantic import BaseModel, Field

from llama_herd.tasks.client.pausing import drain_worker, pause_queue, resume_queue, undo_drain
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.queries import seconds_of


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
