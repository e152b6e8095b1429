"""The description of the API for people: one page, nothing from other hosts, no script."""

from functools import cache
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from llama_herd.tasks.gateway.context import context_of
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.openapi import document
from llama_herd.tasks.gateway.operations import ERRORS, OPERATIONS
from llama_herd.tasks.security.api_keys import KeyRole

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


async def show_docs(request: Request) -> Response:
    """All operations, all fields, all errors."""
    await context_of(request).admit(request, KeyRole.SUBSCRIBER)
    return HTMLResponse(await make_aside(page), headers={"Content-Security-Policy": POLICY})


@cache
def page() -> str:
    """The page."""
    routes = "".join(
        f"<tr><td><code>{one.method.upper()} {escape(one.path)}</code><td>{escape(one.what)}"
        f"<td>{_link(one.body)}<td>{one.status} {_link(one.answer)}<td>{one.role}"
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


def _link(schema: str) -> str:
    return f"<a href=#{schema}>{schema}</a>" if schema else ""
