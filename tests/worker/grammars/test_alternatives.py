"""Alternatives by `oneOf`: followed where no value has two of them, also through references."""

import json
from typing import Annotated, Any, Literal, Union

import pytest
from pydantic import BaseModel, Discriminator, Field, Tag

from llama_herd.worker.grammars.judge import judge_form
from tests.worker.grammars.taking import takes


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "wolf"] = "dog"
    name: bool


class Number(BaseModel):
    type: Literal["number"]
    value: bool


class Sum(BaseModel):
    type: Literal["sum"]
    parts: list[Annotated[Union[Number, "Sum"], Field(discriminator="type")]]


class ByFunction(BaseModel):
    one: Annotated[
        Annotated[Number, Tag("number")] | Annotated[Sum, Tag("sum")], Discriminator(lambda _: "sum")
    ]


class Pets(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


#: Models, each with texts that follow it, and others.
UNIONS: list[tuple[type[BaseModel], list[str], list[str]]] = [
    (
        Pets,
        ['{"pets":[{"kind":"cat","lives":9},{"kind":"wolf","name":true}]}'],
        ['{"pets":[{"lives":9}]}', '{"pets":[{"kind":"cat","name":true}]}'],
    ),
    (
        Sum,
        ['{"type":"sum","parts":[{"type":"sum","parts":[{"type":"number","value":true}]}]}'],
        ['{"type":"sum","parts":[{"type":"sum","value":true}]}'],
    ),
    (ByFunction, ['{"one":{"type":"number","value":true}}'], ['{"one":{"type":"sum","value":true}}']),
]


@pytest.mark.parametrize(("model", "good", "bad"), UNIONS)
def test_a_union_of_pydantics_can_be_followed(
    model: type[BaseModel], good: list[str], bad: list[str]
) -> None:
    answer = judge_form("json", json.dumps(model.model_json_schema()))
    assert answer.kind == "text", answer.text
    assert [takes(answer.text, one) for one in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


A: dict[str, Any] = {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}
B: dict[str, Any] = {"type": "object", "properties": {"k": {"enum": ["b", "c"]}}}
A_AND_B = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]


@pytest.mark.parametrize(
    ("options", "definitions"),
    [
        (A_AND_B, {"a": A, "b": B}),
        ([{"$ref": "#/$defs/a"}, {"type": "null"}], {"a": A}),
        ([{"$ref": "#/$defs/more"}, {"type": "null"}], {"a": A, "b": B, "more": {"oneOf": A_AND_B}}),
        ([{"oneOf": A_AND_B}, {"type": ["null", "integer"]}], {"a": A, "b": B}),
        ([{"$ref": "#n"}, {"$ref": "#/$defs/a"}], {"a": A, "n": {"$anchor": "n", "type": "integer"}}),
    ],
)
def test_alternatives_are_told_apart_through_references(
    options: list[Any], definitions: dict[str, Any]
) -> None:
    answer = judge_form("json", json.dumps({"oneOf": options, "$defs": definitions}))
    assert answer.kind == "text", answer.text
    assert takes(answer.text, '{"k":"a"}')


@pytest.mark.parametrize(
    ("options", "definitions"),
    [
        (A_AND_B, {"a": {**A, "required": []}, "b": B}),
        (A_AND_B, {"a": A, "b": A}),
        (A_AND_B, {"a": A, "b": {"type": "object"}}),
        (A_AND_B, {"a": A, "b": {**B, "properties": {"k": {"enum": ["b", 5]}}}}),
        (A_AND_B, {"a": A, "b": {**B, "properties": {"k": True}}}),
        ([{"$ref": "#/$defs/a"}, True], {"a": A}),
        ([{"$ref": "#/$defs/a"}, {"type": "number"}], {"a": {"type": "integer"}}),
        ([{"$ref": "#/$defs/a"}, {"minimum": 5}], {"a": {"type": ["string", "null"]}}),
    ],
)
def test_alternatives_that_may_meet_are_refused(options: list[Any], definitions: dict[str, Any]) -> None:
    schema = {"items": {"oneOf": options}, "$defs": definitions}
    answer = judge_form("json", json.dumps(schema))
    complaint = "items.oneOf is not supported where a value may have two alternatives. Fix: anyOf"
    assert (answer.kind, answer.text) == ("failed", complaint)


def test_names_keep_their_order_beside_alternatives() -> None:
    apart = [{"properties": {"a": True}, "type": "object"}, {"type": "null"}]
    answer = judge_form("json", json.dumps({"oneOf": apart, "properties": {"b": True}}))
    assert [takes(answer.text, one) for one in ('{"a":1,"b":2}', '{"b":2,"a":1}')] == [True, False]


@pytest.mark.parametrize("is_named", [True, False])
def test_a_name_with_few_texts_is_required_where_a_discriminator_names_it_alone(is_named: bool) -> None:
    schema: dict[str, Any] = {"anyOf": [B, {"type": "null"}]}
    schema |= {"discriminator": {"propertyName": "k"}} if is_named else {}
    answer = judge_form("json", json.dumps(schema))
    assert [takes(answer.text, one) for one in ('{"k":"b"}', "{}")] == [True, not is_named]
