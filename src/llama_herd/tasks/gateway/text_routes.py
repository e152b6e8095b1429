"""Endpoints for vectors of texts, and for ranks of documents. A request of many becomes several jobs."""

import uuid
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from llama_herd.errors import HerdError
from llama_herd.tasks.client.embedding import KEEP_S
from llama_herd.tasks.client.readers import Reader
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_answer import check_end, job_headers
from llama_herd.tasks.gateway.completion_request import foreign_model
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.request_headers import traceparent_of
from llama_herd.tasks.gateway.request_log import facts_of
from llama_herd.tasks.gateway.sse import ClientGone, unless_gone
from llama_herd.tasks.openai.embeddings import HEAD, EmbeddingBody, tail, vector_pieces
from llama_herd.tasks.openai.ranks import RankBody, RankList
from llama_herd.tasks.protocol.events import End, Event
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings

B = TypeVar("B", bound=EmbeddingBody | RankBody)

#: Vectors that are written together: those of the widest models take some tens of milliseconds.
VECTORS_A_PART = 16
JSON = "application/json"


async def create_embeddings(call: Call) -> "EmbeddingAnswer":
    """Make vectors of texts."""
    return EmbeddingAnswer(call, *await _asked(call, EmbeddingBody))


async def rank_documents(call: Call) -> "RankAnswer":
    """Rank documents by how well they answer a query."""
    return RankAnswer(call, *await _asked(call, RankBody))


async def _asked(call: Call, kind: Callable[[dict[str, Any], Settings], B]) -> tuple[B, str]:
    """A request, and the model that it asks, once its caller may. Raises Problem, and InvalidJob."""

    def read(body: dict[str, Any]) -> tuple[B, str]:
        foreign = foreign_model(body)  # a name that no model can have here
        return kind({**body, "model": None} if foreign else body, call.queue.settings), foreign

    asked, foreign = await call.read(read)
    call.caller.check_priority(asked.jobs[0].priority)
    call.charge(len(asked.jobs) - 1)
    named = foreign or asked.jobs[0].model
    model = named or await call.queue.only_model()
    await call.queue.check_model(model, is_named=bool(named))
    return asked, model


class TextAnswer(Generic[B]):
    """The ASGI app that submits jobs with texts, waits for all, and answers with what they came to."""

    def __init__(self, call: Call, asked: B, model: str) -> None:
        self._context, self._client = call.context, call.queue
        self._asked, self._model = asked, model
        self._traceparent = traceparent_of(call.headers)
        first = str(uuid.uuid4())
        self._ids = [first, *(f"{first}.{number}" for number in range(1, len(asked.jobs)))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._context.concurrency.slots(self._client.settings.tenant):
            facts_of(scope).job_id = self._ids[0]
            try:
                async with self._client.listening(self._ids[:1]) as readers:
                    await self._submit()
                    num_tokens, first = await unless_gone(receive, self._wait(readers[self._ids[0]]))
            except ClientGone:
                self._context.abandon(self._client, *self._ids)
                return
            except HerdError as error:
                self._context.abandon(self._client, *self._ids)
                problem = Problem.from_error(error)
                problem.headers = {**problem.headers, **job_headers(self._ids[0])}
                raise problem from error
            answer = await self._answer(num_tokens, first)
            await answer(scope, receive, send)
            await self._client.purge(self._ids)

    async def _submit(self) -> None:
        outcomes = await self._client.submit_many(
            [
                {
                    "job": job.model_copy(update={"model": self._model, "keep_s": KEEP_S}),
                    "job_id": job_id,
                    "traceparent": self._traceparent,
                    "ignore_result": True,  # nobody would read Celery's copy of the vectors
                }
                for job, job_id in zip(self._asked.jobs, self._ids, strict=True)
            ]
        )
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error

    async def _wait(self, reader: Reader) -> tuple[int, list[Event]]:
        """The tokens of all texts, and the first job's events, once all have ended. reader: of the first job.

        The vectors of the others are not kept meanwhile: those of a whole request may be many MiB. Raises
        Problem if one did not end well.
        """
        first = await self._client.all_events(self._ids[0], reader)
        num_tokens, num_texts = self._checked(first, 0), self._asked.jobs[0].num_texts
        for job_id, job in zip(self._ids[1:], self._asked.jobs[1:], strict=True):
            async for events in self._client.events(job_id):
                num_tokens += self._checked(events, num_texts)
            num_texts += job.num_texts
        return num_tokens, first

    def _checked(self, events: list[Event], num_before: int) -> int:
        """The tokens of texts that have ended with these events. Raises Problem if they did not end well."""
        check_end(events, self._asked.source, num_before)
        return sum(end.usage.prompt_tokens for end in events if isinstance(end, End) and end.usage)

    async def _results(self, first: list[Event]) -> AsyncIterator[Result]:
        """What the jobs came to, one by one."""
        yield Result.from_events(first)
        for job_id in self._ids[1:]:
            yield Result.from_events(await self._client.all_events(job_id))

    @abstractmethod
    async def _answer(self, num_tokens: int, first: list[Event]) -> Response:
        """The answer, of jobs that have all ended well. first: the events of the first one."""


class EmbeddingAnswer(TextAnswer[EmbeddingBody]):
    """Vectors, job by job: those of a whole request may be many MiB."""

    async def _answer(self, num_tokens: int, first: list[Event]) -> Response:
        headers = job_headers(self._ids[0])
        return StreamingResponse(self._parts(num_tokens, first), headers=headers, media_type=JSON)

    async def _parts(self, num_tokens: int, first: list[Event]) -> AsyncGenerator[str]:
        yield HEAD
        num_before = 0
        async for result in self._results(first):
            pieces = vector_pieces(result, num_before, is_base64=self._asked.is_base64)
            while part := await make_aside(partial(_next_part, pieces)):
                yield part
            num_before += len(result.vectors or ())
        yield tail(self._model, num_tokens)


class RankAnswer(TextAnswer[RankBody]):
    """The best documents, of all jobs together."""

    async def _answer(self, num_tokens: int, first: list[Event]) -> Response:
        logits = [rank[0] async for result in self._results(first) for rank in result.floats]
        told = RankList.of(logits, self._asked, self._model, num_tokens)
        text = await make_aside(partial(told.model_dump_json, exclude_none=True))
        return Response(text, headers=job_headers(self._ids[0]), media_type=JSON)


def _next_part(pieces: Iterator[str]) -> str:
    return "".join(islice(pieces, VECTORS_A_PART))
