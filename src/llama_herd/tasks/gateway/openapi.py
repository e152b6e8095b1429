"""The OpenAPI description of all routes, made of the classes that parse requests and write answers."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_herd.extras import own_version
from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.gateway.context import context_of
from llama_herd.tasks.gateway.health import Health
from llama_herd.tasks.gateway.herd_routes import HerdView, Version
from llama_herd.tasks.gateway.job_routes import Accepted, Cancelled, JobView
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.operations import ERRORS, OPERATIONS, Operation
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
from llama_herd.tasks.protocol.events import End, Started, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.security.api_keys import KeyRole

MODELS: tuple[type[BaseModel], ...] = (
    *(FileObject, FileList, FileDeleted, BatchBody, BatchObject, BatchList),
    *(GenerationJob, Accepted, JobView, Cancelled, HerdView, Version),
    *(Queued, Started, Token, End),
    *(TokenizeAnswer, DetokenizeAnswer),
    *(Completion, ChatCompletion, ChatCompletionChunk, Model, ModelList, ErrorAnswer, Health),
)


JSON, STREAM = "application/json", "text/event-stream"
FORM, BYTES = "multipart/form-data", "application/octet-stream"

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

#: What statuses say that are not of a request that went as asked.
_OUTCOMES = {204: "there is nothing to send", 503: "not so"}
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
        paths.setdefault(operation.path, {})[operation.method] = _operation_object(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "llama-herd", "version": own_version()},
        "paths": paths,
        "components": {
            "schemas": {**found["$defs"], **own},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation_object(operation: Operation) -> dict[str, Any]:
    in_path = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path]
    told = [
        {"name": name, "in": place, "description": what, "schema": {"type": "string"}}
        for place, given in (("query", operation.queries), ("header", operation.headers))
        for name, what in given
    ]
    kinds = {_media_type(operation.answer): operation.answer, STREAM: operation.events}
    body = {_media_type(operation.body): operation.body}
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
            str(status): {
                "description": _OUTCOMES.get(status, "as asked"),
                **({} if status == 204 else answer),
            }
            for status in (operation.status, operation.otherwise)
            if status
        }
        | errors,
        **({"security": [{"key": []}]} if operation.role else {}),
    }


def _media_type(schema: str) -> str:
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
    return JSONResponse(await make_aside(document))
