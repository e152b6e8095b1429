"""OpenAI's endpoints for completions, chats and models."""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_herd.tasks.gateway.completion_answer import CompletionAnswer
from llama_herd.tasks.gateway.completion_request import CompletionRequest
from llama_herd.tasks.gateway.context import context_of
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.tenant_client import model_not_found
from llama_herd.tasks.openai.answer_schema import Model, ModelList
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS, Endpoint
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.security.api_keys import KeyRole


async def _answer(endpoint: Endpoint, request: Request) -> "CompletionAnswer":
    context = context_of(request)
    caller, client = await context.admit(request, KeyRole.PRODUCER)
    asked = await context.read(
        request,
        caller,
        lambda body: CompletionRequest.read(endpoint, body, request.headers, client.settings, caller),
    )
    context.charge(caller, len(asked.jobs) - 1)
    await client.check_model(asked.model)
    return CompletionAnswer(context, client, asked, facts_of(request.scope))


async def create_completion(request: Request) -> CompletionAnswer:
    """Continue a text."""
    return await _answer(COMPLETIONS, request)


async def create_chat_completion(request: Request) -> CompletionAnswer:
    """Answer in a conversation."""
    return await _answer(CHAT, request)


async def list_models(request: Request) -> Response:
    """The models that jobs are taken for."""
    _, client = await context_of(request).admit(request, KeyRole.SUBSCRIBER)
    workers = await client.workers()
    found = ModelList(data=tuple(_model_object(name, workers) for name in await client.models()))
    return JSONResponse(found.model_dump())


async def get_model(request: Request) -> Response:
    """Answer with one of the models."""
    _, client = await context_of(request).admit(request, KeyRole.SUBSCRIBER)
    name, names = request.path_params["model"], await client.models()
    if name not in names:
        raise model_not_found(name, names)
    return JSONResponse(_model_object(name, await client.workers()).model_dump())


def _model_object(name: str, workers: Iterable[WorkerStatus]) -> Model:
    """A model, by what its live workers say of it."""
    own = [worker for worker in workers if worker.model == name]
    started_ms = min((worker.started_ms for worker in own if worker.started_ms), default=0)
    length = min((worker.max_length for worker in own if worker.max_length), default=None)
    return Model(id=name, created=started_ms // 1000, max_model_len=length)
