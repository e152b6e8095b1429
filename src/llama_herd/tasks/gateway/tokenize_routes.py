"""vLLM's routes for token ids: each request is a job that comes before all others and computes nothing."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.tasks.gateway.completion_answer import JOB_HEADER, check_end
from llama_herd.tasks.gateway.context import context_of
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.request_headers import traceparent_of
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.sse import ClientGone, unless_gone
from llama_herd.tasks.openai.tokenizing import DetokenizeRequest, TokenizeRequest
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.security.api_keys import KeyRole
from llama_herd.tasks.settings import Settings

PromptRequest = TokenizeRequest | DetokenizeRequest


async def tokenize_prompt(request: Request) -> ASGIApp:
    """The ids of a text or of a conversation."""
    return await _answer(request, TokenizeRequest.parse)


async def detokenize_ids(request: Request) -> ASGIApp:
    """The text of ids."""
    return await _answer(request, DetokenizeRequest.parse)


async def _answer(request: Request, read: Callable[[Mapping[str, Any], Settings], PromptRequest]) -> ASGIApp:
    """The app that submits the job, and answers with what it says of its prompt."""
    context = context_of(request)
    caller, client = await context.admit(request, KeyRole.PRODUCER)
    asked = await context.read(request, caller, lambda body: read(body, client.settings))
    await client.check_model(asked.job.model or client.settings.default_model)
    traceparent = traceparent_of(request.headers)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with context.concurrency.slots(caller.tenant):
            job_id = await client.submit(asked.job, str(uuid.uuid4()), None, traceparent)
            facts_of(scope).job_id = job_id
            try:
                events = await unless_gone(receive, client.all_events(job_id))
            except ClientGone:
                context.abandon(client, job_id)
                return
            check_end(events, asked.source)
            told = await make_aside(lambda: asked.answer(Result.from_events(events)).model_dump_json())
            whole = Response(told, media_type="application/json", headers={JOB_HEADER: job_id})
            await whole(scope, receive, send)

    return answer
