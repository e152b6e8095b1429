"""OpenAI's endpoints for completions, chats and models, and vLLM's for token ids and tokenizers.

A request for these is a job that comes before all others and computes nothing.
"""

import uuid
from collections.abc import Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_answer import CompletionAnswer, check_end, job_headers
from llama_herd.tasks.gateway.completion_request import CompletionRequest
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import bad_request
from llama_herd.tasks.gateway.request_headers import traceparent_of
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.sse import ClientGone, unless_gone
from llama_herd.tasks.gateway.tenant_client import model_not_found
from llama_herd.tasks.openai.answer_schema import Model, ModelList
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS, Endpoint
from llama_herd.tasks.openai.tokenizing import DetokenizeRequest, TokenizeRequest, TokenizerInfoRequest
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.worker_status import WorkerStatus


async def create_completion(call: Call) -> CompletionAnswer:
    """Continue a text."""
    return await _complete(COMPLETIONS, call)


async def create_chat_completion(call: Call) -> CompletionAnswer:
    """Answer in a conversation."""
    return await _complete(CHAT, call)


async def _complete(endpoint: Endpoint, call: Call) -> CompletionAnswer:
    settings, caller = call.queue.settings, call.caller
    asked = await call.read(lambda body: CompletionRequest(endpoint, body, call.headers, settings, caller))
    call.charge(len(asked.jobs) - 1)
    await call.queue.check_model(asked.model, is_named=asked.names_model)
    return CompletionAnswer(call, asked)


async def tokenize_prompt(call: Call) -> ASGIApp:
    """The token ids of a text, or of a conversation."""
    return await _tell_prompt(call, TokenizeRequest)


async def detokenize_ids(call: Call) -> ASGIApp:
    """The text that token ids stand for."""
    return await _tell_prompt(call, DetokenizeRequest)


async def show_tokenizer(call: Call) -> ASGIApp:
    """What a model's files say of its tokenizer, with the chat template, if its workers show that."""
    model = call.query_params.get("model") or None
    if model is None:
        _check_only_one(call.queue.settings.model_name, await call.queue.models())
    return await _told(call, TokenizerInfoRequest(model, call.queue.settings))


def _check_only_one(own_model: str, models: list[str]) -> None:
    """Refuse to guess: whoever asks takes the ids of this model for those of the one that it means."""
    if not own_model and len(models) > 1:
        fix = "name one by ?model=, or set HERD_MODEL_NAME of the gateway"
        message = f"model is required, since several are served: {', '.join(models)}. Fix: {fix}"
        raise bad_request(message, param="model")


async def _tell_prompt(call: Call, kind: type[TokenizeRequest | DetokenizeRequest]) -> ASGIApp:
    return await _told(call, await call.read(lambda body: kind(body, call.queue.settings)))


async def _told(call: Call, asked: TokenizeRequest | DetokenizeRequest | TokenizerInfoRequest) -> ASGIApp:
    """The app that submits the job, and answers with what it says of its prompt."""
    context, client = call.context, call.queue
    model = asked.job.model or await client.only_model()
    await client.check_model(model, is_named=bool(asked.job.model))
    job = asked.job.model_copy(update={"model": model})
    traceparent = traceparent_of(call.headers)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        job_id = str(uuid.uuid4())
        with context.concurrency.slots(call.caller.tenant):
            facts_of(scope).job_id = job_id
            try:
                async with client.listening([job_id]) as readers:
                    await client.submit(job, job_id, None, traceparent)
                    events = await unless_gone(receive, client.all_events(job_id, readers[job_id]))
            except ClientGone:
                context.abandon(client, job_id)
                return
            check_end(events, asked.source)
            told = await make_aside(lambda: asked.answer(Result.from_events(events)).model_dump_json())
            whole = Response(told, media_type="application/json", headers=job_headers(job_id))
            await whole(scope, receive, send)

    return answer


async def list_models(call: Call) -> ModelList:
    """The models that jobs are taken for."""
    workers = await call.queue.workers()
    return ModelList(data=tuple(_model_object(name, workers) for name in await call.queue.models()))


async def get_model(call: Call) -> Model:
    """One of these models."""
    name, names = call.path_params["model"], await call.queue.models()
    if name not in names:
        raise model_not_found(name, names)
    return _model_object(name, await call.queue.workers())


def _model_object(name: str, workers: Iterable[WorkerStatus]) -> Model:
    """A model, by what its live workers say of it."""
    own = [worker for worker in workers if worker.model == name]
    started_ms = min((worker.started_ms for worker in own if worker.started_ms), default=0)
    length = min((worker.max_length for worker in own if worker.max_length), default=None)
    return Model(id=name, created=started_ms // 1000, max_model_len=length)
