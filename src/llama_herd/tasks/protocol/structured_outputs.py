"""Forms that a job may ask of its output: a schema, an expression, a choice, a grammar.

Names and shapes are OpenAI's (`response_format`) and vLLM's (`structured_outputs`).
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator

from llama_herd.tasks.protocol.bounded_json import MAX_VALUES, JsonSize, RepeatedField, parse_bounded
from llama_herd.tasks.protocol.json_values import JsonObject, check_json, json_text

#: Of the texts of one form, in UTF-8, whatever else a prompt may have.
MAX_FORM_BYTES = 1 << 18

#: Of a job, and of a request as OpenAI's.
FORM_FIELDS = frozenset(("response_format", "structured_outputs"))

#: Of these a job asks for one. "output": what a worker makes of a chat with tools or reasoning. "value": a
#: schema to which a whole value is held that another engine has drawn.
FormKind = Literal["json", "regex", "choice", "grammar", "output", "value"]
_KINDS: tuple[FormKind, ...] = ("json", "regex", "choice", "grammar")

#: Any JSON object, as `json_object` asks for.
ANY_OBJECT = {"type": "object"}


class OutputForm(NamedTuple):
    """The form of an output: of which kind, its text, and the field of the job that asks for it.

    text: a JSON schema, an expression, a list of texts as JSON, a grammar in Lark or GBNF, or what a
    worker's `WholeOutput` writes.
    """

    kind: FormKind
    text: str
    field: str


def check_response_format(given: object) -> JsonObject:
    """`given`, if it is OpenAI's `response_format`, or the one of a pydantic class. Raises ValueError."""
    if isinstance(given, type) and issubclass(given, BaseModel):
        schema = _closed(given.model_json_schema())
        given = {"type": "json_schema", "json_schema": {"name": given.__name__, "schema": schema}}
    form = _object(given, "must be an object with a type")
    kind = form.get("type")
    if kind in ("text", "json_object"):
        _check_names(form, ("type",))
    elif kind == "json_schema":
        _check_names(form, ("type", "json_schema"))
        wanted = _object(form.get("json_schema"), "json_schema must be an object with a schema")
        _check_names(wanted, ("name", "description", "schema", "strict"))
        if not isinstance(wanted.get("strict"), bool | None):
            raise ValueError("json_schema.strict must be true or false")
        for name in ("name", "description"):
            if not isinstance(wanted.get(name), str | None):
                raise ValueError(f"json_schema.{name} must be a text")
        _check_schema(wanted.get("schema"), "json_schema.schema")
    else:
        raise ValueError("must have the type text, json_object or json_schema")
    return form


def check_structured_outputs(given: object) -> JsonObject:
    """`given`, if it is vLLM's `structured_outputs`: exactly one kind of form. Raises ValueError."""
    form = _object(given, f"must be an object with one of {', '.join(_KINDS)}")
    _check_names(form, _KINDS)
    kinds = [kind for kind in _KINDS if form.get(kind) is not None]
    if len(kinds) != 1:
        raise ValueError(f"must have exactly one of {', '.join(_KINDS)}, got {len(kinds)}")
    kind, value = kinds[0], form[kinds[0]]
    if kind == "choice":
        if not isinstance(value, list | tuple) or not value:
            raise ValueError("choice must be a list of texts, and not empty")
        if not all(isinstance(text, str) and text for text in value):
            raise ValueError("choice must have texts that are not empty")
        _check_bytes("".join(value))
    elif kind == "json":
        _check_schema(_read_schema(value), kind)
    elif not isinstance(value, str) or not value:
        raise ValueError(f"{kind} must be a text, and not empty")
    else:
        _check_bytes(value)
    return form


ResponseFormat = Annotated[JsonObject, BeforeValidator(check_response_format)]
StructuredOutputs = Annotated[JsonObject, BeforeValidator(check_structured_outputs)]


def output_form(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> OutputForm | None:
    """The form that a job asks for by its checked fields, of which at most one is there; None: any text."""
    if structured_outputs is not None:
        kind = next(kind for kind in _KINDS if structured_outputs.get(kind) is not None)
        value = structured_outputs[kind]
        if kind == "json":
            value = json_text(_read_schema(value))
        elif kind == "choice":
            value = json_text(value)
        return OutputForm(kind, value, f"structured_outputs.{kind}")
    if response_format is None or response_format["type"] == "text":
        return None
    if response_format["type"] == "json_object":
        return OutputForm("json", json_text(ANY_OBJECT), "response_format")
    schema = response_format["json_schema"]["schema"]
    return OutputForm("json", json_text(schema), "response_format.json_schema.schema")


def _closed(schema: Any) -> Any:
    """A class's schema without names that the class does not have."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _closed(value) for name, value in schema.items()}
    if found.get("type") == "object" and isinstance(found.get("properties"), Mapping):
        found.setdefault("additionalProperties", False)
    return found


def _object(value: object, complaint: str) -> JsonObject:
    if not isinstance(value, Mapping):
        raise ValueError(complaint)
    check_json(value)
    return dict(value)


def _check_names(form: JsonObject, known: Collection[str]) -> None:
    if not all(name in known for name in form):
        raise ValueError(f"may have these fields: {', '.join(known)}")


def _check_schema(schema: object, field: str) -> None:
    if not isinstance(schema, Mapping | bool):
        raise ValueError(f"{field} must be a JSON schema")
    check_json([schema])
    _check_bytes(json_text(schema))


def _read_schema(value: object) -> object:
    """A schema as it is, or from its text. What cannot be read is no schema."""
    if not isinstance(value, str):
        return value
    _check_bytes(value)
    try:
        return parse_bounded(value.encode(), JsonSize(MAX_VALUES))
    except RepeatedField:
        raise
    except ValueError:
        return None


def _check_bytes(text: str) -> None:
    num_bytes = len(text.encode())
    if num_bytes > MAX_FORM_BYTES:
        raise ValueError(f"must be at most {MAX_FORM_BYTES} bytes, got {num_bytes}")
