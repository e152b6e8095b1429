"""vLLM's routes for token ids: each request is a job that comes before all others and computes nothing."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llama_herd.tasks.gateway.desk import Desk
from llama_herd.tasks.gateway.door import Door, door_of
from llama_herd.tasks.gateway.notes import notes_of, traceparent_of
from llama_herd.tasks.gateway.openai_routes import JOB_HEADER, check_end, check_model
from llama_herd.tasks.gateway.sse import ClientGone, unless_gone
from llama_herd.tasks.openai.tokenizing import Detokenizing, Tokenizing
from llama_herd.tasks.result import Result
from llama_herd.tasks.security.api_keys import KeyRole
from llama_herd.tasks.settings import Settings

Asked = Tokenizing | Detokenizing


async def tokenize(request: Request) -> "Told":
    """The ids of a text or of a conversation."""
    return await _ask(request, Tokenizing.of)


async def detokenize(request: Request) -> "Told":
    """The text of ids."""
    return await _ask(request, Detokenizing.of)


async def _ask(request: Request, read: Callable[[Mapping[str, Any], Settings], Asked]) -> "Told":
    door = door_of(request)
    caller, desk = await door.admit(request, KeyRole.PRODUCER)
    asked = await door.read(request, caller, lambda body: read(body, desk.settings))
    await check_model(desk, asked.job.model or desk.settings.default_model)
    return Told(door, desk, asked, traceparent_of(request.headers))


class Told:
    """Submits the job and answers with what it says of its prompt."""

    def __init__(self, door: Door, desk: Desk, asked: Asked, traceparent: str | None) -> None:
        self._door = door
        self._desk = desk
        self._asked = asked
        self._traceparent = traceparent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._door.places.taken(self._desk.settings.tenant):
            job_id = await self._desk.submit(self._asked.job, str(uuid.uuid4()), None, self._traceparent)
            notes_of(scope).job_id = job_id
            try:
                events = await unless_gone(receive, self._desk.all_events(job_id))
            except ClientGone:
                self._door.leave(self._desk, job_id)
                return
            check_end(events, self._asked.source)
            told = self._asked.answer(Result.from_events(events)).model_dump_json()
            answer = Response(told, media_type="application/json", headers={JOB_HEADER: job_id})
            await answer(scope, receive, send)
