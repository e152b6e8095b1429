"""The answer that a request goes on from, and the conversation that it brings."""

from typing import Any

from pydantic import ValidationError

from llama_herd.errors import JobNotFound, RecordUnreadable
from llama_herd.tasks.client.dead_items import body_fields
from llama_herd.tasks.gateway.call import BODY_BYTES, Call
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import Problem, bad_request
from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.left_jobs import read_record
from llama_herd.tasks.openai.request_json import request_size
from llama_herd.tasks.openai.responses.answer import PREFIX, ResponseFrame, job_id_of
from llama_herd.tasks.openai.responses.body import PREVIOUS
from llama_herd.tasks.openai.responses.conversation import NOTHING, Conversation, asked_turns
from llama_herd.tasks.protocol.bounded_json import JsonTooLarge
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.result import Result

#: OpenAI's code, at which its clients send all items themselves.
_CODE = "previous_response_not_found"
_ITEMS = "Fix: send all items so far in `input`"


async def conversation_before(call: Call, name: object) -> Conversation:
    """The conversation of the tenant's answer with this id, and what came of it. Raises Problem.

    The job of each answer has its whole conversation, so no other is looked at.
    """
    if name is None:
        return NOTHING
    job_id = job_id_of(name)
    if job_id is None:
        raise bad_request(f"must be the id of an answer, which begins with {PREFIX}", param=PREVIOUS)
    try:
        record, body = await call.queue.run(record_and_body(call.queue.core.ledger, job_id))
        call.charge(len(body) / BODY_BYTES)
        _check_size(body, call.queue.settings.max_prompt_bytes)
        fields = body_fields(job_id, body)
        if why := _why_not(record, fields):
            raise _problem(why)
        events = await call.queue.all_events(job_id)
    except JobNotFound:
        raise _problem(f"was never made, is deleted, or ended longer ago than is kept. {_ITEMS}") from None
    return await make_aside(lambda: _conversation(job_id, fields, events))


async def record_and_body(ledger: Ledger, job_id: str) -> tuple[JobRecord, bytes]:
    """A dialogue: a job's record, and the JSON of the job as it was accepted. Raises JobNotFound."""
    record, _ = await read_record(ledger, job_id)
    body = await ledger.body(job_id)
    if record is None or body is None:
        raise JobNotFound.for_id(job_id)
    return record, body


def _check_size(body: bytes, max_prompt_bytes: int) -> None:
    """Raise Problem for a job that is more JSON than a request may be: it would become more with each answer.

    Its text is bounded as a prompt, but not the parts that it comes in.
    """
    try:
        request_size(max_prompt_bytes).add(body)
    except JsonTooLarge as error:
        message = f"the conversation {error}. Fix: begin another one, with what counts of it in `input`"
        raise bad_request(message, "too_many_values", PREVIOUS) from None


def _why_not(record: JobRecord, job: dict[str, Any]) -> str:
    """Why none can go on from an answer; empty if one can."""
    if job.get("conversation_from") is None:
        return f"was asked for with store=false, or by another route. {_ITEMS}"
    if not record.is_final:
        return "has not ended. Fix: wait for its end"
    return "" if record.state == "done" else f"has ended as {record.state}. {_ITEMS}"


def _problem(why: str) -> Problem:
    return bad_request(f"{PREVIOUS} names an answer that {why}", _CODE, PREVIOUS)


def _conversation(job_id: str, fields: dict[str, Any], events: list[Event]) -> Conversation:
    """That of a job which has ended well. Raises RecordUnreadable."""
    found = ResponseFrame(job_id, None, 0).whole(Result.from_events(events))
    return Conversation(asked_turns(job_from(job_id, fields)), found["output"])


def job_from(job_id: str, fields: dict[str, Any]) -> GenerationJob:
    """A job of whose record these are. Raises RecordUnreadable."""
    try:
        return GenerationJob.model_validate(fields)
    except ValidationError:
        unreadable = f"the body in the record of job {job_id} is not a job. Fix: purge it"
        raise RecordUnreadable(unreadable) from None
