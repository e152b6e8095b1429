"""Fields of a schema as columns: their kinds, their values, and what is said of answers that lack them."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pyarrow.parquet import read_schema
from pydantic import BaseModel

from llama_herd.cli.batch.cell_kind import CellKind
from llama_herd.cli.batch.schema_columns import SchemaColumn, read_answer, schema_columns
from tests.cli.batch.table_run import OURS, answered, plan, read


class Place(BaseModel):
    city: str


class Verdict(BaseModel):
    label: Literal["good", "bad"]
    stars: int
    score: float
    is_sure: bool
    tags: list[str]
    place: Place
    note: str | None = None


SCHEMA = Verdict.model_json_schema()
GOOD: dict[str, Any] = {
    "label": "good",
    "stars": 3,
    "score": 0.5,
    "is_sure": True,
    "tags": ["ä", "b"],
    "place": {"city": "Ulm"},
    "note": None,
}


def columns(schema: Any) -> list[SchemaColumn]:
    return schema_columns({"type": "json_schema", "json_schema": {"schema": schema}})


def kind(field: Any, **more: Any) -> CellKind:
    (column,) = columns({"type": "object", "properties": {"a": field}, **more})
    return column.kind


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"type": "string"}, CellKind.TEXT),
        ({"type": "integer"}, CellKind.INTEGER),
        ({"type": "number"}, CellKind.NUMBER),
        ({"type": ["integer", "number"]}, CellKind.NUMBER),
        ({"type": "boolean"}, CellKind.FLAG),
        ({"type": ["integer", "null"]}, CellKind.INTEGER),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, CellKind.NUMBER),
        ({"enum": ["a", "b", None]}, CellKind.TEXT),
        ({"enum": [1, 2**60]}, CellKind.INTEGER),
        ({"enum": [1, 0.5]}, CellKind.NUMBER),
        ({"enum": [1, "a"]}, CellKind.JSON),
        ({"const": True}, CellKind.FLAG),
        ({"const": None}, CellKind.JSON),
        ({"$ref": "#/$defs/b~1c"}, CellKind.TEXT),
        ({"$ref": "#/$defs/loop"}, CellKind.JSON),
        ({"$ref": "#/nowhere"}, CellKind.JSON),
        ({"allOf": [{"$ref": "#/$defs/b~1c"}]}, CellKind.TEXT),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, CellKind.JSON),
        ({"type": "array", "items": {"type": "string"}}, CellKind.JSON),
        ({"type": "object"}, CellKind.JSON),
        ({}, CellKind.JSON),
        (True, CellKind.JSON),
    ],
)
def test_the_kind_of_a_field(field: Any, expected: CellKind) -> None:
    definitions = {"b/c": {"enum": ["x"]}, "loop": {"$ref": "#/$defs/loop"}}
    assert kind(field, **{"$defs": definitions}) is expected


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, True, {"properties": 1}, {"$ref": "#"}])
def test_a_schema_of_no_object_has_no_columns(schema: Any) -> None:
    assert columns(schema) == []
    assert schema_columns(None) == schema_columns({"type": "json_object"}) == []


def test_an_answer_gives_each_column_its_value() -> None:
    assert read_answer(columns(SCHEMA), json.dumps(GOOD)) == (GOOD, "")
    without_note = {name: value for name, value in GOOD.items() if name != "note"}
    assert read_answer(columns(SCHEMA), json.dumps(without_note)) == (GOOD, "")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"stars": 0.5}, "stars is not a whole number of 64 bits"),
        ({"stars": 2**63}, "stars is not a whole number of 64 bits"),
        ({"stars": True}, "stars is not a whole number of 64 bits"),
        ({"stars": None}, "stars is not a whole number of 64 bits"),
        ({"score": "0.5"}, "score is not a number of 64 bits"),
        ({"score": 10**400}, "score is not a number of 64 bits"),
        ({"is_sure": 1}, "is_sure is not true or false"),
        ({"label": 1}, "label is not a text"),
        ({"label": "\ud800"}, "label is not a text"),
        ({"tags": ["\ud800"]}, "tags is not a text in Unicode"),
    ],
)
def test_a_value_of_another_kind_is_null_with_the_reason(change: dict[str, Any], complaint: str) -> None:
    (name,) = change
    assert read_answer(columns(SCHEMA), json.dumps(GOOD | change)) == (GOOD | {name: None}, complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"label": "go', "the answer is not JSON"),
        (None, "the answer is not JSON"),
        ("[" * 100_000, "the answer is not JSON"),
        ('{"score": NaN}', "the answer is not JSON"),
        ("[1]", "the answer is not a JSON object"),
        ('{"stars": 1e0, "tags": [], "score": 1}', "label is missing; is_sure is missing; place is missing"),
    ],
)
def test_what_is_no_answer_is_told(text: str | None, complaint: str) -> None:
    values, told = read_answer(columns(SCHEMA), text)
    assert told == complaint
    assert list(values) == list(GOOD)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_the_fields_of_answers_are_typed_columns(tmp_path: Path, suffix: str) -> None:
    source, output = tmp_path / "in.csv", tmp_path / f"out{suffix}"
    source.write_text("prompt,label\na,gold\nb,gold\nc,gold\n")
    texts = [json.dumps(GOOD), "{", json.dumps(GOOD | {"stars": "many"})]
    files = answered(plan(source, output, schema=SCHEMA), lambda row: texts[row.index - 2])
    assert files.renamed == ["the input's column label is input_label in the output"]
    good, torn, odd = read(output)
    assert list(good) == ["prompt", "input_label", *OURS, *GOOD]
    nested = {"tags": '["ä", "b"]', "place": '{"city": "Ulm"}'}
    expected = {
        ".csv": GOOD | nested | {"stars": "3", "score": "0.5", "is_sure": "true", "note": ""},
        ".parquet": GOOD | nested,
        ".jsonl": GOOD,
    }[suffix]
    assert {name: good[name] for name in GOOD} == expected
    assert not good["error"]
    assert (torn["text"], torn["error"]) == ("{", "the answer is not JSON")
    assert not any(torn[name] for name in GOOD)
    assert (odd["stars"] or None, odd["error"]) == (None, "stars is not a whole number of 64 bits")
    assert {row["input_label"] for row in (good, torn, odd)} == {"gold"}
    if suffix == ".parquet":
        types = {field.name: str(field.type) for field in read_schema(output)}
        assert [types[name] for name in ("label", "stars", "score", "is_sure", "tags", "note")] == [
            *("string", "int64", "double", "bool", "string", "string")
        ]


def test_fields_that_are_called_as_ours_get_another_name(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("prompt,text,input_text,answer_text\na,mine,other,third\n")
    schema = {"properties": {"text": {"type": "string"}, "input_input_text": {"type": "integer"}}}
    files = answered(plan(source, output, schema=schema), lambda row: '{"text": "inner"}')
    (row,) = read(output)
    assert files.renamed == [
        "the input's column text is input_input_input_text in the output",
        "the input's column answer_text is input_answer_text in the output",
        "the schema's field text is answer_text in the output",
    ]
    assert row["text"] == '{"text": "inner"}'
    assert (row["answer_text"], row["input_text"]) == ("inner", "other")
    assert (row["input_input_input_text"], row["input_answer_text"]) == ("mine", "third")
