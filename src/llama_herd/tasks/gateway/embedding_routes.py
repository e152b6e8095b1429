"""OpenAI's endpoint for vectors of texts. A request of many becomes several jobs, and is read job by job."""

import uuid
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from starlette.types import Receive, Scope, Send

from llama_herd.errors import HerdError
from llama_herd.tasks.client.embedding import KEEP_S
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_answer import JOB_HEADER, check_end
from llama_herd.tasks.gateway.completion_request import foreign_model
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.request_headers import traceparent_of
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.sse import ClientGone, unless_gone
from llama_herd.tasks.openai.embeddings import HEAD, EmbeddingBody, tail, vector_pieces
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.result import Result

#: Vectors that are written together: those of the widest models take some tens of milliseconds.
VECTORS_A_PART = 16


async def create_embeddings(call: Call) -> "EmbeddingAnswer":
    """Make vectors of texts."""
    asked, foreign = await call.read(lambda body: _read(body, call))
    call.caller.check_priority(asked.jobs[0].priority)
    call.context.rate_limit.charge(call.caller, len(asked.jobs) - 1)
    model = foreign or asked.jobs[0].model or await call.queue.only_model()
    await call.queue.check_model(model)
    return EmbeddingAnswer(call, asked, model)


def _read(body: dict[str, Any], call: Call) -> tuple[EmbeddingBody, str]:
    """A request, and the name of a model that none can have here, if it has one."""
    foreign = foreign_model(body)
    return EmbeddingBody({**body, "model": None} if foreign else body, call.queue.settings), foreign


class EmbeddingAnswer:
    """The ASGI app that submits the jobs, waits for all of them, and writes one after the other."""

    def __init__(self, call: Call, asked: EmbeddingBody, model: str) -> None:
        self._context, self._client = call.context, call.queue
        self._asked, self._model = asked, model
        self._traceparent = traceparent_of(call.headers)
        first = str(uuid.uuid4())
        self._ids = [first, *(f"{first}.{number}" for number in range(1, len(asked.jobs)))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._context.concurrency.slots(self._client.settings.tenant):
            facts_of(scope).job_id = self._ids[0]
            try:
                await self._submit()
                num_tokens = await unless_gone(receive, self._num_tokens())
            except ClientGone:
                self._context.abandon(self._client, *self._ids)
                return
            except HerdError as error:
                self._context.abandon(self._client, *self._ids)
                problem = Problem.from_error(error)
                problem.headers = {**problem.headers, JOB_HEADER: self._ids[0]}
                raise problem from error
            await self._send(send, num_tokens)
            await self._client.purge(self._ids)

    async def _submit(self) -> None:
        outcomes = await self._client.submit_many(
            [
                {
                    "job": job.model_copy(update={"model": self._model, "keep_s": KEEP_S}),
                    "job_id": job_id,
                    "traceparent": self._traceparent,
                }
                for job, job_id in zip(self._asked.jobs, self._ids, strict=True)
            ]
        )
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error

    async def _num_tokens(self) -> int:
        """The tokens of all texts, once all jobs have ended. Raises Problem if one did not end well.

        No vectors are kept meanwhile: those of a whole request may be many MiB.
        """
        num_tokens = 0
        for job_id in self._ids:
            async for events in self._client.events(job_id):
                check_end(events, "input")
                ends = [event for event in events if isinstance(event, End)]
                num_tokens += sum(end.usage.prompt_tokens for end in ends if end.usage)
        return num_tokens

    async def _send(self, send: Send, num_tokens: int) -> None:
        headers = {"content-type": "application/json", JOB_HEADER.lower(): self._ids[0]}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})
        await _send_part(send, HEAD)
        first = 0
        for job_id, job in zip(self._ids, self._asked.jobs, strict=True):
            result = Result.from_events(await self._client.all_events(job_id))
            pieces = vector_pieces(result, first, is_base64=self._asked.is_base64)
            while part := await make_aside(partial(_next_part, pieces)):
                await _send_part(send, part)
            first += job.num_texts
        await _send_part(send, tail(self._model, num_tokens))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _next_part(pieces: Iterator[str]) -> str:
    return "".join(islice(pieces, VECTORS_A_PART))


async def _send_part(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
