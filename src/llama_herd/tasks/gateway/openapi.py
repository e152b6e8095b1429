"""The description of all routes, made of the classes that check what comes and write what goes."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.events import End, Started, Token
from llama_herd.tasks.gateway.context import context_of
from llama_herd.tasks.gateway.health import Health
from llama_herd.tasks.gateway.herd_routes import HerdView
from llama_herd.tasks.gateway.job_routes import Accepted, Cancelled, JobView
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.openai.answer_schema import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    ErrorAnswer,
    Model,
    ModelList,
)
from llama_herd.tasks.openai.batch_object import BatchBody, BatchList, BatchObject
from llama_herd.tasks.openai.body_schema import REF, body_schema, detokenize_schema, tokenize_schema
from llama_herd.tasks.openai.file_object import FileDeleted, FileList, FileObject
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS
from llama_herd.tasks.openai.tokenizing import DetokenizeAnswer, TokenizeAnswer
from llama_herd.tasks.security.api_keys import KeyRole

MODELS: tuple[type[BaseModel], ...] = (
    *(FileObject, FileList, FileDeleted, BatchBody, BatchObject, BatchList),
    *(GenerationJob, Accepted, JobView, Cancelled, HerdView),
    *(Queued, Started, Token, End),
    *(TokenizeAnswer, DetokenizeAnswer),
    *(Completion, ChatCompletion, ChatCompletionChunk, Model, ModelList, ErrorAnswer, Health),
)


class Operation(NamedTuple):
    """One method of one path, as the description of the API lists it.

    body, answer: names of schemas; events: that of each event of the answer, if it is, or may be, a stream;
    otherwise: another status that comes with the same answer. queries, headers: names, and what they say.
    """

    method: str
    path: str
    what: str
    status: int = 200
    body: str = ""
    answer: str = ""
    events: str = ""
    otherwise: int = 0
    role: str = ""
    queries: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


KEY = ("Idempotency-Key", "A name of your own. The same request under the same name is the same job.")
GONE = ("X-On-Disconnect", "cancel or stay: what becomes of the job if you go away before its end.")
SEEN = ("Last-Event-ID", "Number of the last event that you have seen. The query `after` says the same.")
AFTER = ("after", "The id after which the page begins.")
JSON, STREAM = "application/json", "text/event-stream"
FORM, BYTES = "multipart/form-data", "application/octet-stream"
_JOB, _FILE, _BATCH = "/v1/jobs/{id}", "/v1/files/{id}", "/v1/batches/{id}"

#: What comes in or goes out otherwise than as JSON.
_MEDIA = {"FileForm": FORM, "Bytes": BYTES}
_TEXT = {"type": "string"}
_SEEN_FROM = "From when the time counts: `created_at`."
FILE_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {**_TEXT, "format": "binary", "description": "The file: a JSON object on each line."},
        "purpose": {"const": "batch", "description": "Always `batch`."},
        "expires_after[anchor]": {"const": "created_at", "description": _SEEN_FROM},
        "expires_after[seconds]": {**_TEXT, "description": "For how long it is kept: 3600 to 2592000."},
    },
}

OPERATIONS = (
    Operation(
        "post",
        "/v1/completions",
        "Continue a text.",
        body="CompletionBody",
        answer="Completion",
        events="Completion",
        role="producer",
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer in a conversation.",
        body="ChatBody",
        answer="ChatCompletion",
        events="ChatCompletionChunk",
        role="producer",
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/tokenize",
        "The token ids of a text, or of a conversation.",
        body="TokenizeBody",
        answer="TokenizeAnswer",
        role="producer",
    ),
    Operation(
        "post",
        "/detokenize",
        "The text that token ids stand for.",
        body="DetokenizeBody",
        answer="DetokenizeAnswer",
        role="producer",
    ),
    Operation(
        "get", "/v1/models", "The models that jobs are taken for.", answer="ModelList", role="subscriber"
    ),
    Operation("get", "/v1/models/{model}", "One of these models.", answer="Model", role="subscriber"),
    Operation(
        "post",
        "/v1/jobs",
        "Put a job into the queue.",
        202,
        body="GenerationJob",
        answer="Accepted",
        role="producer",
        headers=(KEY,),
    ),
    Operation("get", _JOB, "A job's state; at its end, its result.", answer="JobView", role="subscriber"),
    Operation(
        "get",
        f"{_JOB}/events",
        "A job's events, recorded ones first, up to its end. 204 if you have seen its end.",
        events="Event",
        role="subscriber",
        headers=(SEEN,),
    ),
    Operation("delete", _JOB, "End a job early. Its text is kept.", 202, answer="Cancelled", role="producer"),
    Operation("post", f"{_JOB}/purge", "Forget a job that is over, or waits.", 204, role="operator"),
    Operation(
        "post",
        "/v1/files",
        "Store a file for a batch, as it comes.",
        body="FileForm",
        answer="FileObject",
        role="producer",
    ),
    Operation(
        "get",
        "/v1/files",
        "The tenant's files.",
        answer="FileList",
        role="producer",
        queries=(
            AFTER,
            ("limit", "Most files of a page: up to 10,000 may be asked for, and at most 1,000 come."),
            ("order", "asc or desc, by the time they were stored."),
            ("purpose", "batch or batch_output: only these."),
        ),
    ),
    Operation(
        "get",
        _FILE,
        "What is known of a file. Only producers see what was uploaded.",
        answer="FileObject",
        role="subscriber",
    ),
    Operation(
        "delete",
        _FILE,
        "Delete a file, unless a batch reads it.",
        answer="FileDeleted",
        role="producer",
    ),
    Operation(
        "get",
        f"{_FILE}/content",
        "The bytes of a file. Only producers see what was uploaded.",
        answer="Bytes",
        role="subscriber",
    ),
    Operation(
        "post",
        "/v1/batches",
        "Run the rows of a file.",
        body="BatchBody",
        answer="BatchObject",
        role="producer",
        headers=(KEY,),
    ),
    Operation(
        "get",
        "/v1/batches",
        "The tenant's batches, the newest first.",
        answer="BatchList",
        role="producer",
        queries=(AFTER, ("limit", "Most batches of a page: 1 to 100.")),
    ),
    Operation("get", _BATCH, "How far a batch is.", answer="BatchObject", role="subscriber"),
    Operation(
        "post",
        f"{_BATCH}/cancel",
        "End a batch early. What is done is kept.",
        answer="BatchObject",
        role="producer",
    ),
    Operation(
        "get",
        "/v1/herd",
        "The queues, the workers, and who waits how long. Ids of jobs are for operators only.",
        answer="HerdView",
        role="subscriber",
    ),
    Operation(
        "get",
        "/health",
        "The same as /health/ready.",
        answer="Health",
        otherwise=503,
    ),
    Operation("get", "/health/live", "200 as long as the process answers. Needs no key.", answer="Health"),
    Operation(
        "get",
        "/health/ready",
        "200 when Redis is there and a worker serves, else 503. Needs no key.",
        answer="Health",
        otherwise=503,
    ),
)

ERRORS = {
    400: "the body or a header is wrong, or the model cannot take the prompt",
    401: "no key, or a wrong one",
    403: "the key's role is too small, another site's page calls, or the gateway lacks a right in Redis",
    404: "no such job, file or batch in this tenant, no such model, no such route",
    408: "the body did not come in time",
    409: "another job has this Idempotency-Key; the job was cancelled; a worker runs it; a batch reads the "
    "file; or the batch is over",
    410: "the bytes of the file are gone",
    413: "the body, or the file, is too long",
    415: "the body is compressed",
    422: "the job has wrong fields",
    429: "the queue is full, the key asks too often, too many answers are under way, or a quota is full",
    431: "the head of the request is too long",
    500: "the job failed, and would fail again",
    503: "there are no keys, Redis or the files are away, no worker is up, or the job may succeed later: see "
    "Retry-After",
    504: "the job was not finished by its deadline",
}


#: What a route that needs no key answers, too: a wrong key and a long head are refused everywhere.
_OF_ALL = (401, 431)


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    _, found = models_json_schema([(model, "serialization") for model in MODELS], ref_template=REF)
    events = [{"$ref": REF.format(model=model.__name__)} for model in (Queued, Started, Token, End)]
    own = {
        "CompletionBody": body_schema(COMPLETIONS),
        "TokenizeBody": tokenize_schema(),
        "DetokenizeBody": detokenize_schema(),
        "ChatBody": body_schema(CHAT),
        "FileForm": FILE_FORM,
        "Bytes": {**_TEXT, "format": "binary"},
        "Event": {"oneOf": events, "description": "One of these, by the name of the event."},
    }
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "llama-herd", "version": version("llama-herd")},
        "paths": paths,
        "components": {
            "schemas": {**found["$defs"], **own},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    in_path = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path]
    told = [
        {"name": name, "in": place, "description": what, "schema": {"type": "string"}}
        for place, given in (("query", operation.queries), ("header", operation.headers))
        for name, what in given
    ]
    kinds = {_kind_of(operation.answer): operation.answer, STREAM: operation.events}
    body = {_kind_of(operation.body): operation.body}
    answer = _content({kind: schema for kind, schema in kinds.items() if schema})
    errors = {
        str(status): {"description": what, **_content({JSON: "ErrorAnswer"})}
        for status, what in ERRORS.items()
        if operation.role or status in _OF_ALL
    }
    needs = f" Needs a key of the role {operation.role} or above." if operation.role else ""
    return {
        "summary": operation.what,
        "description": operation.what + needs,
        "parameters": [*path, *told],
        **({"requestBody": {"required": True, **_content(body)}} if operation.body else {}),
        "responses": {
            str(status): {"description": what, **answer}
            for status, what in ((operation.status, "as asked"), (operation.otherwise, "not so"))
            if status
        }
        | errors,
        **({"security": [{"key": []}]} if operation.role else {}),
    }


def _kind_of(schema: str) -> str:
    return _MEDIA.get(schema, JSON)


def _content(schemas: Mapping[str, str]) -> dict[str, Any]:
    """A body, by its media types: the name of the schema of each."""
    if not schemas:
        return {}
    return {
        "content": {kind: {"schema": {"$ref": REF.format(model=schema)}} for kind, schema in schemas.items()}
    }


async def show_document(request: Request) -> Response:
    """The OpenAPI document."""
    await context_of(request).admit(request, KeyRole.SUBSCRIBER)
    return JSONResponse(document())
