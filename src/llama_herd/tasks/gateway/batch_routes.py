"""OpenAI's endpoints of batches: records are made and shown here, and a feeder runs them."""

import asyncio
import hashlib
import secrets

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_herd.errors import JobConflict
from llama_herd.tasks.gateway.context import GatewayContext, context_of
from llama_herd.tasks.gateway.file_routes import after_of, limit_of
from llama_herd.tasks.gateway.problem import Problem, bad_request
from llama_herd.tasks.gateway.request_headers import idempotency_key_of
from llama_herd.tasks.gateway.stores import (
    batches_of,
    checked_batch_id,
    file_elsewhere,
    no_batch,
    no_file,
    quota_exceeded,
)
from llama_herd.tasks.gateway.tenant_client import TenantClient
from llama_herd.tasks.ledger.batch_records import ENDED_TTL_S, BatchRecord, BatchRecords, BatchRefusal
from llama_herd.tasks.ledger.stored_files import QuotaExceeded
from llama_herd.tasks.openai.batch_object import BatchBody, BatchList, BatchObject
from llama_herd.tasks.security.api_keys import KeyRole

#: Most batches that a page may hold, and how many it holds unless it is told.
MAX_LIMIT, LIMIT = 100, 20


async def create_batch(request: Request) -> Response:
    """Accept a batch."""
    context = context_of(request)
    caller, client = await context.admit(request, KeyRole.PRODUCER)
    body = await context.read(request, caller, BatchBody.parse)
    batches = await _batches(context, client)
    batch_id = _new_id(caller.tenant, idempotency_key_of(request.headers))
    asked = body.to_request(caller.fingerprint or "", context.settings.gateway_file_life_s)
    most = context.settings.gateway_max_tenant_batches
    create = batches.create(batch_id, asked, body.window_ms, most, body.webhook_secret or "")
    made = await client.run(create)
    if isinstance(made, QuotaExceeded):
        raise quota_exceeded(made, f"wait until some of them have ended for {ENDED_TTL_S // 86_400} days")
    if not isinstance(made, BatchRecord):
        raise _refusal_problem(made)
    context.feeder.look_soon()
    return _answer(made)


def _new_id(tenant: str, key: str | None) -> str:
    """A new id, or the one that belongs to an idempotency key."""
    if key is None:
        return f"batch_{secrets.token_hex(12)}"
    return f"batch_{hashlib.sha256(f'{tenant}/batch/{key}'.encode()).hexdigest()[:24]}"


def _refusal_problem(why: BatchRefusal) -> Problem:
    match why:
        case "conflict":
            return Problem.from_error(JobConflict("another batch has this Idempotency-Key"))
        case "no_file":
            return no_file("input_file_id")
        case "no_input":
            message = "this file is made of answers. Fix: upload one with purpose=batch"
            return bad_request(message, param="input_file_id")
        case "elsewhere":
            return file_elsewhere()


async def list_batches(request: Request) -> Response:
    """A page of the tenant's batches."""
    context = context_of(request)
    _, client = await context.admit(request, KeyRole.PRODUCER)
    batches = await _batches(context, client)
    page = await client.run(batches.page(after_of(request), limit_of(request, LIMIT, MAX_LIMIT)))
    if page is None:
        raise bad_request("no such batch", param="after")
    return JSONResponse(BatchList.from_page(page).model_dump())


async def get_batch(request: Request) -> Response:
    """How far a batch is."""
    client, batches, batch_id = await _batch_of(request, KeyRole.SUBSCRIBER)
    record = await client.run(batches.get(batch_id))
    if record is None:
        raise no_batch()
    return _answer(record)


async def cancel_batch(request: Request) -> Response:
    """End a batch early."""
    client, batches, batch_id = await _batch_of(request, KeyRole.PRODUCER)
    found = await client.run(batches.cancel(batch_id))
    if found is None:
        raise no_batch()
    if not isinstance(found, BatchRecord):
        raise Problem(409, "batch_over", f"the batch is {found}: it cannot be cancelled any more")
    return _answer(found)


async def _batch_of(request: Request, needs: KeyRole) -> tuple[TenantClient, BatchRecords, str]:
    """The id in the path, and the records of the caller's tenant. Another tenant's batch is not there."""
    context = context_of(request)
    _, client = await context.admit(request, needs)
    batch_id = checked_batch_id(request.path_params["id"])
    return client, await _batches(context, client), batch_id


async def _batches(context: GatewayContext, client: TenantClient) -> BatchRecords:
    return await asyncio.to_thread(batches_of, context.storage, client.settings.tenant)


def _answer(record: BatchRecord) -> Response:
    return JSONResponse(BatchObject.from_record(record).model_dump())
