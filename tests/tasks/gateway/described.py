"""Holds answers of a gateway to the description that it gives of them."""

import json
import re
from functools import cache
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator

from llama_herd.tasks.gateway.openapi import JSON, document


def hold_to_description(method: str, path: str, status: int, kind: str, raw: bytes) -> None:
    """Fail if this answer in JSON to a described request has a status, or fields, that are not described."""
    template = _template(urlsplit(path).path)
    described = document()["paths"].get(template, {}).get(method.lower())
    if described is None or kind != JSON:
        return
    assert str(status) in described["responses"], f"{status} of {method} {template} is not described"
    _validator(template, method.lower(), status).validate(json.loads(raw))


@cache
def _template(path: str) -> str:
    """The path in the document that this one is an instance of; empty if there is none."""
    fitting = (one for one in document()["paths"] if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), path))
    return next(fitting, "")


@cache
def _validator(template: str, method: str, status: int) -> Draft202012Validator:
    content = document()["paths"][template][method]["responses"][str(status)]["content"]
    return Draft202012Validator({**content[JSON]["schema"], "components": document()["components"]})
