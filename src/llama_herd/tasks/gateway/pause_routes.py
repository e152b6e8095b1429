"""What operators do from afar: pause a queue and resume it, drain a worker and let it take jobs again."""

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from llama_herd.tasks.client.pausing import drain_worker, pause_queue, resume_queue, undo_drain
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.problem import bad_request


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


async def pause_model(call: Call) -> Response:
    """Let no worker take another job of a model. Jobs are still accepted, and running ones go on."""
    model = call.path_params["model"]
    until_ms = await call.queue.run(pause_queue(call.caller.tenant, model, _for_s(call)))
    return _answer(QueuePause(model=model, is_paused=True, paused_until_ms=until_ms))


async def resume_model(call: Call) -> Response:
    """Let workers take jobs of a model again."""
    model = call.path_params["model"]
    await call.queue.run(resume_queue(call.caller.tenant, model))
    return _answer(QueuePause(model=model, is_paused=False, paused_until_ms=None))


async def drain(call: Call) -> Response:
    """Let a worker take no more jobs of the tenant. It ends those that it has, or hands them back."""
    name = call.path_params["name"]
    until_ms = await call.queue.run(drain_worker(call.caller.tenant, name, _for_s(call)))
    return _answer(WorkerDrain(worker=name, is_drained=True, drained_until_ms=until_ms))


async def resume_worker(call: Call) -> Response:
    """Let a drained worker take jobs again."""
    name = call.path_params["name"]
    await call.queue.run(undo_drain(call.caller.tenant, name))
    return _answer(WorkerDrain(worker=name, is_drained=False, drained_until_ms=None))


def _for_s(call: Call) -> float | None:
    """How long it is to last; None: until it is ended. Raises Problem."""
    try:
        return float(call.query_params["for_s"]) if "for_s" in call.query_params else None
    except ValueError:
        raise bad_request("must be a number of seconds", param="for_s") from None


def _answer(told: BaseModel) -> Response:
    return JSONResponse(told.model_dump())
