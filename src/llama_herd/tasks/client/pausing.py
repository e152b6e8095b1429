"""Pausing queues and draining workers: what both clients and the gateway ask the ledger for."""

import re

from redis.exceptions import ResponseError

from llama_herd.errors import BadInput, WorkerNotFound
from llama_herd.tasks.client.status_texts import some_names
from llama_herd.tasks.connection.complaint import is_denied
from llama_herd.tasks.ledger.pauses import Pauses
from llama_herd.tasks.ledger.redis_call import each, raise_if_error
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.stored_files import redis_time_ms
from llama_herd.tasks.protocol.close_names import close_models, did_you_mean
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.settings import MODEL_PATTERN

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
    names = sorted(one.name for one in await Reports(tenant).workers())
    if worker not in names:
        meant = did_you_mean(close_models(worker, names)) or "."
        raise WorkerNotFound(f"no worker {worker} is up{meant} Up are: {some_names(names)}")
    return await Pauses(tenant).drain(worker, for_ms)


async def undo_drain(tenant: str, worker: str) -> bool:
    """Let a worker take jobs again, whether it is up or not. Returns whether it was drained."""
    return await Pauses(tenant).undo_drain(worker)


async def paused_queues(tenant: str) -> frozenset[str]:
    """The queues that are paused now; none for a user of Redis who may not know them."""
    (answer,) = await each([Pauses(tenant).queues_after(await redis_time_ms())])
    if isinstance(answer, ResponseError) and is_denied(answer):
        return frozenset()
    return raise_if_error(answer)


def _queue_of(tenant: str, model: str) -> str:
    if not re.fullmatch(MODEL_PATTERN, model):
        raise BadInput("model: must be 1 to 128 letters, digits, dots, underscores or dashes")
    return queue_name(model, tenant)


def _milliseconds(for_s: float | None) -> int | None:
    if for_s is None:
        return None
    if not 0.001 <= for_s <= MAX_PAUSE_S:
        raise BadInput(f"for_s: must be 0.001 to {MAX_PAUSE_S} seconds, a year, got {for_s:g}")
    return round(1000 * for_s)
