"""The description of all routes, as OpenAPI and as a page, made of the classes that read and write bodies.

It is the same at every gateway of a version, so a browser gets it without a key, as it gets the page.
"""

from functools import cache
from html import escape
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from llama_herd.extras import own_version
from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.gateway.call import context_of
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.routes import ERRORS, OPERATIONS, Operation, Schema
from llama_herd.tasks.openai.answer_schema import ErrorAnswer
from llama_herd.tasks.openai.body_schema import REF, body_schema, detokenize_schema, tokenize_schema
from llama_herd.tasks.openai.embeddings import embedding_schema
from llama_herd.tasks.openai.ranks import rank_schema
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS
from llama_herd.tasks.openai.responses.schema import response_schema
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import End, Started, Token, Vectors
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.ranking_job import RankingJob

EVENTS = (Queued, Started, Token, Vectors, End)
KINDS = (GenerationJob, EmbeddingJob, RankingJob)

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
    told = [schema for one in OPERATIONS for schema in (one.body, one.answer, one.events)]
    classes = {schema for schema in (*told, *EVENTS, *KINDS, ErrorAnswer) if not isinstance(schema, str)}
    ordered = sorted(classes, key=_name)
    _, found = models_json_schema([(one, "serialization") for one in ordered], ref_template=REF)
    events, kinds = ([_reference(one) for one in some] for some in (EVENTS, KINDS))
    own = {
        "CompletionBody": body_schema(COMPLETIONS),
        "EmbeddingBody": embedding_schema(REF),
        "RankBody": rank_schema(),
        "TokenizeBody": tokenize_schema(),
        "DetokenizeBody": detokenize_schema(),
        "ChatBody": body_schema(CHAT),
        "ResponseBody": response_schema(),
        "FileForm": FILE_FORM,
        "Bytes": {**_TEXT, "format": "binary"},
        "Job": {"oneOf": kinds, "description": "A job of one kind; without `kind` it is a generation."},
        "Event": {"oneOf": events, "description": "One of these, by the name of the event."},
    }
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        for path in operation.paths:
            paths.setdefault(path, {})[operation.method] = _operation_object(operation)
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
    answer = _content(operation.answer, operation.events)
    body = _content(operation.body)
    errors = {
        str(status): {"description": what, **_content(ErrorAnswer)}
        for status, what in ERRORS.items()
        if operation.role or status in _OF_ALL
    }
    needs = f" Needs a key of the role {operation.role} or above." if operation.role else ""
    return {
        "summary": operation.what,
        "description": operation.what + needs,
        "parameters": [*path, *told],
        **({"requestBody": {"required": True, **body}} if body else {}),
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


def _name(schema: Schema) -> str:
    return schema if isinstance(schema, str) else schema.__name__


def _content(schema: Schema, events: Schema = "") -> dict[str, Any]:
    """A body: its media type and schema, and those of a stream that it may be instead."""
    told = {_MEDIA.get(_name(schema), JSON): {"schema": _reference(schema)}} if schema else {}
    if events:
        told[STREAM] = {"schema": _server_sent(events)}
    return {"content": told} if told else {}


def _reference(schema: Schema) -> dict[str, str]:
    return {"$ref": REF.format(model=_name(schema))}


def _server_sent(schema: Schema) -> dict[str, Any]:
    """An event of a stream, whose data is of this schema, or tells of an error, or of OpenAI's end."""
    texts = [{"contentMediaType": JSON, "contentSchema": _reference(one)} for one in (schema, ErrorAnswer)]
    ends = [] if schema == "Event" else [{"const": "[DONE]"}]
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {**_TEXT, "description": "Kind of the event; `error`: the answer cannot go on."},
            "id": {**_TEXT, "description": "Number of the job's event, from which a reader can go on."},
            "data": {**_TEXT, "anyOf": [*texts, *ends]},
        },
    }


async def show_document(request: Request) -> Response:
    """The OpenAPI document."""
    await context_of(request).authenticator.check_key(request, needs_any=True)
    return JSONResponse(await make_aside(document))


#: Of the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


async def show_docs(request: Request) -> Response:
    """All operations, all fields, all errors."""
    await context_of(request).authenticator.check_key(request, needs_any=True)
    return HTMLResponse(await make_aside(page), headers={"Content-Security-Policy": POLICY})


@cache
def page() -> str:
    """The description as a page."""
    routes = "".join(
        f"<tr><td><code>{one.method.upper()} {escape(', '.join(one.paths))}</code><td>{escape(one.what)}"
        f"<td>{_link(one.body)}<td>{one.status} {_link(one.answer)}<td>{one.role or ''}"
        for one in OPERATIONS
    )
    errors = "".join(f"<tr><td>{status}<td>{escape(what)}" for status, what in ERRORS.items())
    schemas = document()["components"]["schemas"]
    fields = "".join(_table(name, schema) for name, schema in sorted(schemas.items()))
    head = "<tr><th>request<th>what<th>body<th>answer<th>role"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>llama-herd</title><style>{STYLE}</style>"
        "<h1>llama-herd</h1><p>Machines read <a href=openapi.json>openapi.json</a>."
        f"<table>{head}{routes}</table>"
        f"<h2>Errors</h2><table>{errors}</table>{fields}</html>"
    )


STYLE = """
:root { color-scheme: light dark } body { font: 15px/1.5 sans-serif; margin: 2rem auto; max-width: 70rem;
padding: 0 1rem } table { border-collapse: collapse } td, th { text-align: left; vertical-align: top;
padding: .2rem .8rem .2rem 0 } td { border-top: 1px solid #8884 }
"""

BOUNDS = ("minimum", "maximum", "maxLength", "maxItems")


def _table(name: str, schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code><td>{escape(_kind(given))}<td>{_about(given)}"
        for field, given in schema.get("properties", {}).items()
    )
    return f"<h2 id={name}>{name}</h2><p>{_about(schema)}<table>{rows}</table>"


def _about(schema: dict[str, Any]) -> str:
    return escape(schema.get("description", ""))


def _kind(schema: dict[str, Any]) -> str:
    """A field's type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    kind = str(schema.get("type", "anything"))
    bounds = [f"{name} {schema[name]}" for name in BOUNDS if name in schema]
    default = [f"default {schema['default']}"] if schema.get("default") not in (None, [], {}) else []
    return ", ".join((kind, *bounds, *default))


def _link(schema: Schema) -> str:
    return f"<a href=#{_name(schema)}>{_name(schema)}</a>" if schema else ""
