"""OpenAI's Responses API. An answer is a job, so it can be read again, and its events from any number on."""

from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.errors import JobNotFound
from llama_herd.tasks.client.dead_items import body_fields
from llama_herd.tasks.client.job_purge import purge_job
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_answer import job_headers
from llama_herd.tasks.gateway.earlier_response import conversation_before, job_from, record_and_body
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import bad_request
from llama_herd.tasks.gateway.queries import limit_of, order_of
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.response_answer import ResponseAnswer, response_parts, whole_answer
from llama_herd.tasks.gateway.response_request import ResponseRequest
from llama_herd.tasks.gateway.sse import EventStream
from llama_herd.tasks.ledger.answers import Cancellation, JobRecord
from llama_herd.tasks.openai.responses.answer import PREFIX, ResponseFrame, Status, job_id_of
from llama_herd.tasks.openai.responses.body import PREVIOUS
from llama_herd.tasks.openai.responses.conversation import asked_turns
from llama_herd.tasks.openai.responses.turn_items import InputItemList, input_items
from llama_herd.tasks.protocol.message import model_of

#: The query that says from which of its events a stream goes on.
AFTER_QUERY = "starting_after"


class ResponseDeleted(BaseModel):
    """An answer that is gone."""

    id: str = Field(description="Id of the answer.")
    object: Literal["response"] = Field(default="response", description="Always `response`.")
    deleted: Literal[True] = Field(default=True, description="Always true.")


async def create_response(call: Call) -> ResponseAnswer:
    """Answer in a conversation, in the form of OpenAI's Responses API."""
    settings, caller = call.queue.settings, call.caller
    body = await call.read(dict[str, Any])
    before = await conversation_before(call, body.get(PREVIOUS))
    asked = await call.in_turn(lambda: ResponseRequest(body, before, call.headers, settings, caller))
    await call.queue.check_model(asked.model, is_named=asked.names_model)
    return ResponseAnswer(call, asked)


async def get_response(call: Call) -> ASGIApp:
    """An answer as it is now; with `stream=true` all its events, recorded ones first, up to its end."""
    after = _after(call)
    frame, record = await _found(call)
    if call.query_params.get("stream") == "true" and call.method == "GET":
        return _events(call, frame, after)
    return await _as_it_is(call, frame, record)


async def cancel_response(call: Call) -> ASGIApp:
    """End an answer early. What it has said is kept."""
    frame, _ = await _found(call)
    if await call.queue.run(call.queue.core.ledger.cancel(frame.job_id)) is Cancellation.UNKNOWN:
        raise JobNotFound.for_id(frame.job_id)
    return await _as_it_is(call, *await _found(call))


async def delete_response(call: Call) -> ResponseDeleted:
    """Forget an answer that has ended, or waits."""
    frame, _ = await _found(call)
    core = call.queue.core
    await call.queue.run(purge_job(core.ledger, frame.job_id, core.queue))
    return ResponseDeleted(id=PREFIX + frame.job_id)


async def list_input_items(call: Call) -> InputItemList:
    """What an answer was asked: its whole conversation, without its instructions, the last item first."""
    limit, order, after = limit_of(call, 20, 100), order_of(call), call.query_params.get("after")
    frame, _ = await _found(call)
    body = await call.queue.run(call.queue.core.ledger.body(frame.job_id))
    fields = body_fields(frame.job_id, body)
    if fields.get("conversation_from") is None:
        raise JobNotFound(f"what job {frame.job_id} was asked is not told: by store=false, or by its route")

    def make() -> InputItemList | None:
        items = input_items(frame.job_id, asked_turns(job_from(frame.job_id, fields)))
        return InputItemList.page(items, after, limit, order)

    page = await make_aside(make)
    if page is None:
        raise bad_request("no such item", param="after")
    return page


async def _found(call: Call) -> tuple[ResponseFrame, JobRecord]:
    """The answer that the path names. Raises JobNotFound."""
    job_id = job_id_of(call.path_params["id"])
    if job_id is None:
        raise JobNotFound(f"no answer has such an id: each begins with {PREFIX}")
    facts_of(call.scope).job_id = job_id
    record, body = await call.queue.run(record_and_body(call.queue.core.ledger, job_id))
    if "kind" in body_fields(job_id, body):
        raise JobNotFound(f"job {job_id} has vectors or ranks, and no answer")
    model = model_of(record.queue, call.caller.tenant)
    return ResponseFrame(job_id, model, record.submitted_ms // 1000), record


async def _as_it_is(call: Call, frame: ResponseFrame, record: JobRecord) -> ASGIApp:
    if record.is_final:
        events = await call.queue.all_events(frame.job_id)
        return await make_aside(lambda: whole_answer(frame, events))
    status: Status = "queued" if record.state == "queued" else "in_progress"
    return JSONResponse(frame.response(status), headers=job_headers(frame.job_id))


def _after(call: Call) -> int:
    """The number of the last event that the client has seen; -1: of none. Raises Problem."""
    text = call.query_params.get(AFTER_QUERY) or "-1"
    if text != "-1" and not (text.isdecimal() and len(text) < 10):
        raise bad_request("must be the sequence_number of an event", param=AFTER_QUERY)
    return int(text)


def _events(call: Call, frame: ResponseFrame, after: int) -> ASGIApp:
    context, client, facts = call.context, call.queue, facts_of(call.scope)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with context.concurrency.slots(client.settings.tenant):
            events, heartbeat_s = client.events(frame.job_id), client.settings.gateway_heartbeat_s
            parts = response_parts(frame, events, facts, heartbeat_s, after)
            stream = EventStream(parts, headers=job_headers(frame.job_id), until=context.is_closing)
            await stream(scope, receive, send)

    return answer
