"""OpenAI's endpoints of batches: records are made and shown here, and a feeder runs them."""

import asyncio
import hashlib
import secrets

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_herd.errors import JobConflict
from llama_herd.tasks.client.submission import MAX_KEY_CHARS
from llama_herd.tasks.gateway.desk import Desk
from llama_herd.tasks.gateway.door import Door, door_of
from llama_herd.tasks.gateway.errors import Problem, bad_request
from llama_herd.tasks.gateway.file_routes import after_of, limit_of
from llama_herd.tasks.gateway.openai_routes import KEY_HEADER
from llama_herd.tasks.gateway.stores import (
    batches_of,
    checked_batch_id,
    elsewhere,
    no_batch,
    no_file,
    too_much,
)
from llama_herd.tasks.ledger.batch_records import ENDED_TTL_S, BatchRecord, BatchRecords, Refusal
from llama_herd.tasks.ledger.redis_call import ask
from llama_herd.tasks.ledger.stored_files import Full
from llama_herd.tasks.openai.batch_object import BatchBody, BatchList, BatchObject
from llama_herd.tasks.security.api_keys import KeyRole

#: Most batches that a page may hold, and how many it holds unless it is told.
MAX_LIMIT, LIMIT = 100, 20


async def create(request: Request) -> Response:
    """Accept a batch."""
    door = door_of(request)
    caller, desk = await door.admit(request, KeyRole.PRODUCER)
    body = await door.read(request, caller, BatchBody.parse)
    batches = await _batches(door, desk)
    batch_id = _new_id(caller.tenant, request.headers.get(KEY_HEADER))
    asked = body.asked(caller.fingerprint or "", door.settings.gateway_file_life_s)
    most = door.settings.gateway_max_tenant_batches
    create = batches.create(batch_id, asked, body.window_ms, most, body.webhook_secret or "")
    made = await desk.run(ask(create))
    if isinstance(made, Full):
        raise too_much(made, f"wait until some of them have ended for {ENDED_TTL_S // 86_400} days")
    if not isinstance(made, BatchRecord):
        raise _refused(made)
    door.feeder.look_soon()
    return _answer(made)


def _new_id(tenant: str, key: str | None) -> str:
    """A new id, or the one that belongs to an idempotency key. Raises Problem."""
    if key is None:
        return f"batch_{secrets.token_hex(12)}"
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise bad_request(f"must be 1 to {MAX_KEY_CHARS} characters long, got {len(key)}", param=KEY_HEADER)
    return f"batch_{hashlib.sha256(f'{tenant}/batch/{key}'.encode()).hexdigest()[:24]}"


def _refused(why: Refusal) -> Problem:
    match why:
        case "conflict":
            return Problem.of(JobConflict("another batch has this Idempotency-Key"))
        case "no_file":
            return no_file("input_file_id")
        case "no_input":
            message = "this file is made of answers. Fix: upload one with purpose=batch"
            return bad_request(message, param="input_file_id")
        case "elsewhere":
            return elsewhere()


async def show_all(request: Request) -> Response:
    """A page of the tenant's batches."""
    door = door_of(request)
    _, desk = await door.admit(request, KeyRole.PRODUCER)
    batches = await _batches(door, desk)
    page = await desk.run(ask(batches.page(after_of(request), limit_of(request, LIMIT, MAX_LIMIT))))
    if page is None:
        raise bad_request("no such batch", param="after")
    return JSONResponse(BatchList.of(page).model_dump())


async def show(request: Request) -> Response:
    """How far a batch is."""
    desk, batches, batch_id = await _batch_of(request, KeyRole.SUBSCRIBER)
    record = await desk.run(ask(batches.get(batch_id)))
    if record is None:
        raise no_batch()
    return _answer(record)


async def cancel(request: Request) -> Response:
    """End a batch early."""
    desk, batches, batch_id = await _batch_of(request, KeyRole.PRODUCER)
    found = await desk.run(ask(batches.cancel(batch_id)))
    if found is None:
        raise no_batch()
    if not isinstance(found, BatchRecord):
        raise Problem(409, "batch_over", f"the batch is {found}: it cannot be cancelled any more")
    return _answer(found)


async def _batch_of(request: Request, needs: KeyRole) -> tuple[Desk, BatchRecords, str]:
    """The id in the path, and the records of the caller's tenant. Another tenant's batch is not there."""
    door = door_of(request)
    _, desk = await door.admit(request, needs)
    batch_id = checked_batch_id(request.path_params["id"])
    return desk, await _batches(door, desk), batch_id


async def _batches(door: Door, desk: Desk) -> BatchRecords:
    return await asyncio.to_thread(batches_of, door.storage, desk.settings.tenant)


def _answer(record: BatchRecord) -> Response:
    return JSONResponse(BatchObject.of(record).model_dump())
