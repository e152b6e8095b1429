"""Holds answers of a gateway to the description that it gives of them."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from llama_herd.tasks.gateway.openapi import JSON, STREAM, document


def hold_to_description(method: str, path: str, status: int, kind: str, raw: bytes) -> None:
    """Fail if a described request is answered, in JSON or by events, as its description does not say."""
    template, kind = _template(urlsplit(path).path), kind.partition(";")[0]
    described = document()["paths"].get(template, {}).get(method.lower())
    if described is None or kind not in (JSON, STREAM):
        return
    assert str(status) in described["responses"], f"{status} of {method} {template} is not described"
    validator = _validator(template, method.lower(), status, kind)
    for told in (json.loads(raw),) if kind == JSON else _events(raw):
        validator.validate(told)


def _events(raw: bytes) -> Iterator[dict[str, str]]:
    """The events of a stream; comments are left out."""
    for block in raw.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            yield fields


@cache
def _template(path: str) -> str:
    """The path in the document that this one is an instance of; empty if there is none."""
    fitting = (one for one in document()["paths"] if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), path))
    return next(fitting, "")


def _content(validator: Any, schema: dict[str, Any], text: str, _: object) -> Iterator[ValidationError]:
    """What a text says as JSON, which validators leave to whoever uses them."""
    try:
        yield from validator.descend(json.loads(text), schema)
    except ValueError as error:
        yield ValidationError(f"{text!r} is no JSON: {error}")


#: It looks into texts, too.
Validator = extend(Draft202012Validator, {"contentSchema": _content})


@cache
def _validator(template: str, method: str, status: int, kind: str) -> Any:
    content = document()["paths"][template][method]["responses"][str(status)]["content"]
    return Validator({**content[kind]["schema"], "components": document()["components"]})
