"""What a job may ask of its output's form, in the words of OpenAI and of vLLM."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from llama_herd.errors import InvalidJob
from llama_herd.tasks.protocol.events import Event, Started, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.structured_outputs import MAX_FORM_BYTES
from llama_herd.tasks.settings import Settings
from tests.tasks.protocol.test_events import END

SETTINGS = Settings(max_prompt_bytes=2 * MAX_FORM_BYTES)
SCHEMA = {"type": "object", "properties": {"z": {"const": None}, "a": {"enum": [1, None]}}}
CANARY = "CANARY"


def parsed(**fields: Any) -> GenerationJob:
    return GenerationJob.parse({"prompt": "x", **fields}, SETTINGS)


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json", {"type": "object"}),
        ({"response_format": json_schema(SCHEMA)}, "json", SCHEMA),
        ({"response_format": json_schema(SCHEMA, strict=True, description="of x")}, "json", SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json", SCHEMA),
        ({"structured_outputs": {"choice": ["yes", "é"], "regex": None}}, "choice", ["yes", "é"]),
    ],
)
def test_a_form_is_kept_as_it_was_asked_for(fields: dict[str, Any], kind: str, value: Any) -> None:
    job = parsed(**fields)
    again = GenerationJob.parse(job.to_json(), SETTINGS)
    form = job.output_form
    assert form is not None
    assert form == again.output_form
    assert form.kind == kind
    found = json.loads(form.text)
    assert found == value
    assert list(found) == list(value), "the order of names is the order of the answer"


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
def test_without_a_form_any_text_may_come(fields: dict[str, Any]) -> None:
    assert parsed(**fields).output_form is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"response_format": CANARY}, "response_format: must be an object with a type"),
        ({"response_format": {"type": CANARY}}, "must have the type text, json_object or json_schema"),
        ({"response_format": {"type": "text", CANARY: 1}}, "may have these fields: type"),
        ({"response_format": {"type": "json_schema"}}, "json_schema must be an object with a schema"),
        ({"response_format": json_schema(CANARY)}, "json_schema.schema must be a JSON schema"),
        ({"response_format": json_schema(SCHEMA, strict=CANARY)}, "strict must be true or false"),
        ({"response_format": json_schema(SCHEMA, name=5)}, "json_schema.name must be a text"),
        ({"structured_outputs": {}}, "exactly one of json, regex, choice, grammar, got 0"),
        ({"structured_outputs": {"regex": CANARY, "choice": ["a"]}}, "exactly one of"),
        ({"structured_outputs": {"json": CANARY}}, "json must be a JSON schema"),
        ({"structured_outputs": {"json": '{"type": "null", "type": "CANARY"}'}}, "the field type twice"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "json must be a JSON schema"),
        ({"structured_outputs": {"regex": ""}}, "regex must be a text, and not empty"),
        ({"structured_outputs": {"choice": []}}, "choice must be a list of texts"),
        ({"structured_outputs": {"choice": [CANARY, ""]}}, "choice must have texts that are not empty"),
        ({"structured_outputs": {"choice": ["a"] * 100_000}}, "at most 16384 values"),
        ({"structured_outputs": {"grammar": "a" * (MAX_FORM_BYTES + 1)}}, f"at most {MAX_FORM_BYTES} bytes"),
        ({"structured_outputs": {"regex": f"{CANARY}\0"}}, "must not contain a NUL"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format cannot be combined with structured_outputs",
        ),
    ],
)
def test_what_is_no_form_is_refused_by_name_and_not_repeated(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parsed(**fields)
    assert complaint in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_form_counts_as_a_part_of_the_prompt() -> None:
    small = Settings(max_prompt_bytes=100)
    with pytest.raises(InvalidJob, match="structured_outputs: must be at most 100 bytes, got 1"):
        GenerationJob.parse({"prompt": "x", "structured_outputs": {"regex": "a" * 100}}, small)
    job = parsed(structured_outputs={"regex": "a" * 100})
    assert job.num_prompt_bytes == len("x") + len('{"regex":""}') + 100


class Inner(BaseModel):
    names: list[str]


class Answer(BaseModel):
    inner: Inner | None
    number: int = 5


def test_a_class_stands_for_its_schema_and_reads_the_answer() -> None:
    form = parsed(response_format=Answer).output_form
    assert form is not None
    schema = json.loads(form.text)
    assert schema["properties"].keys() == {"inner", "number"}
    assert not schema["additionalProperties"]
    assert not schema["$defs"]["Inner"]["additionalProperties"]
    events: list[Event] = [
        Started(at_ms=1, seq=1, job="a", epoch=1, attempt=1, worker="w", model="m", seed=7),
        Token(seq=2, job="a", epoch=1, i=0, ids=(1,), text='{"inner": null,'),
        Token(seq=3, job="a", epoch=1, i=1, ids=(2,), text=' "number": 7}', finish_reason="stop"),
        END.model_copy(update={"seq": 4}),
    ]
    assert Result.from_events(events).parsed(Answer) == Answer(inner=None, number=7)
