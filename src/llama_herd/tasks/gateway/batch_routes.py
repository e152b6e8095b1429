"""OpenAI's endpoints of batches: records are made and shown here, and a feeder runs them."""

import hashlib
import re
import secrets

from llama_herd.errors import JobConflict
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.file_routes import file_elsewhere, no_file
from llama_herd.tasks.gateway.problem import Problem, bad_request, not_found, quota_exceeded
from llama_herd.tasks.gateway.queries import after_of, limit_of
from llama_herd.tasks.gateway.request_headers import idempotency_key_of
from llama_herd.tasks.ledger.batch_records import ENDED_TTL_S, BatchRecord, BatchRecords, BatchRefusal
from llama_herd.tasks.ledger.stored_files import QuotaExceeded
from llama_herd.tasks.openai.batch_object import BatchBody, BatchList, BatchObject

_BATCH_ID = re.compile(r"batch_[0-9a-f]{24}")
#: Most batches that a page may hold, and how many it holds unless it is told.
MAX_LIMIT, LIMIT = 100, 20


async def create_batch(call: Call) -> BatchObject:
    """Run the rows of a file."""
    body = await call.read(BatchBody.parse)
    batches = await _batches(call)
    batch_id = _new_id(call.caller.tenant, idempotency_key_of(call.headers))
    settings = call.context.settings
    asked = body.to_request(call.caller.fingerprint or "", settings.gateway_file_life_s)
    most = settings.gateway_max_tenant_batches
    made = await call.queue.run(
        batches.create(batch_id, asked, body.window_ms, most, body.webhook_secret or "")
    )
    if isinstance(made, QuotaExceeded):
        raise quota_exceeded(made, f"wait until some of them have ended for {ENDED_TTL_S // 86_400} days")
    if not isinstance(made, BatchRecord):
        raise _refusal_problem(made)
    call.context.feeder.look_soon()
    return BatchObject.from_record(made)


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


async def list_batches(call: Call) -> BatchList:
    """The tenant's batches, the newest first."""
    batches = await _batches(call)
    page = await call.queue.run(batches.page(after_of(call), limit_of(call, LIMIT, MAX_LIMIT)))
    if page is None:
        raise bad_request("no such batch", param="after")
    data = tuple(BatchObject.from_record(BatchRecord.from_fields(fields)) for fields in page.records)
    return BatchList(data=data, has_more=page.has_more)


async def get_batch(call: Call) -> BatchObject:
    """How far a batch is."""
    batch_id = _batch_id_of(call)
    record = await call.queue.run((await _batches(call)).get(batch_id))
    if record is None:
        raise _no_batch()
    return BatchObject.from_record(record)


async def cancel_batch(call: Call) -> BatchObject:
    """End a batch early. What is done is kept."""
    batch_id = _batch_id_of(call)
    found = await call.queue.run((await _batches(call)).cancel(batch_id))
    if found is None:
        raise _no_batch()
    if not isinstance(found, BatchRecord):
        raise Problem(409, "batch_over", f"the batch is {found}: it cannot be cancelled any more")
    return BatchObject.from_record(found)


def _batch_id_of(call: Call) -> str:
    """The id in the path. Raises Problem if no batch can have it."""
    batch_id: str = call.path_params["id"]
    if not _BATCH_ID.fullmatch(batch_id):
        raise _no_batch()
    return batch_id


def _no_batch() -> Problem:
    return not_found("no such batch: it was never made, or it ended a month ago")


async def _batches(call: Call) -> BatchRecords:
    """The records of the caller's tenant: another tenant's batch is not there. Raises StorageUnavailable."""
    return BatchRecords(call.caller.tenant, await call.context.storage_id())
