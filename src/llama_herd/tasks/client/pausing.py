"""Pausing queues and draining workers: what both clients and the gateway ask the ledger for."""

from redis.exceptions import ResponseError

from llama_herd.errors import BadInput, WorkerNotFound
from llama_herd.tasks.client.arguments import MODEL, checked_seconds, checked_text, is_model
from llama_herd.tasks.client.status_texts import some_names
from llama_herd.tasks.connection.complaint import is_denied
from llama_herd.tasks.ledger.pauses import Pauses
from llama_herd.tasks.ledger.redis_call import each, raise_if_error, redis_time_ms
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.close_names import close_models, did_you_mean
from llama_herd.tasks.protocol.message import queue_name

#: Longest time of a pause with an end.
MAX_PAUSE_S = 31_536_000


async def pause_queue(tenant: str, model: str, for_s: float | None) -> int | None:
    """Pause a model's queue. Returns when that ends, in unix milliseconds; None: when it is resumed.

    Raises BadInput for such a time, and for what can be no model's name.
    """
    return await Pauses(tenant).pause(_queue_of(tenant, model), _milliseconds(for_s))


async def resume_queue(tenant: str, model: str) -> bool:
    """End a pause. Returns whether there was one. Raises BadInput."""
    return await Pauses(tenant).resume(_queue_of(tenant, model))


async def drain_worker(tenant: str, worker: str, for_s: float | None) -> int | None:
    """Drain a worker that is up. Returns when that ends, as `pause_queue` does.

    Raises BadInput, and WorkerNotFound.
    """
    for_ms = _milliseconds(for_s)
    checked_text("worker", worker)
    names = sorted(one.name for one in await Reports(tenant).workers())
    if worker not in names:
        meant = did_you_mean(close_models(worker, names)) or "."
        raise WorkerNotFound(f"no worker {worker} is up{meant} Up are: {some_names(names)}")
    return await Pauses(tenant).drain(worker, for_ms)


async def undo_drain(tenant: str, worker: str) -> bool:
    """Let a worker take jobs again, up or not. Returns whether it was drained. Raises BadInput."""
    return await Pauses(tenant).undo_drain(checked_text("worker", worker))


async def paused_queues(tenant: str) -> frozenset[str]:
    """The queues that are paused now; none for a user of Redis who may not know them."""
    (answer,) = await each([Pauses(tenant).queues_after(await redis_time_ms())])
    if isinstance(answer, ResponseError) and is_denied(answer):
        return frozenset()
    return raise_if_error(answer)


def _queue_of(tenant: str, model: str) -> str:
    if not is_model(model):
        raise BadInput(f"model: must be {MODEL}")
    return queue_name(model, tenant)


def _milliseconds(for_s: float | None) -> int | None:
    seconds = checked_seconds("for_s", for_s, 0.001, MAX_PAUSE_S, note=", a year")
    return None if seconds is None else round(1000 * seconds)
