"""Instances follow their schemas, or are refused in words: two validators that share nothing look at them."""

import json
import warnings
from random import Random
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from llama_herd.errors import BadInput
from llama_herd.testing.instance import instance_of
from llama_herd.testing.matching_text import text_matching
from tests.examples import seeds
from tests.worker.grammars.random_schemas import random_schema
from tests.worker.grammars.wild_schemas import wild_schema

#: More than schemas have.
DEEP = 64


class Line(BaseModel):
    article: Annotated[str, Field(pattern=r"^[A-Z]{2}-\d{4}$")]
    amount: Annotated[int, Field(ge=3, le=9)]
    price: Annotated[float, Field(gt=0, multiple_of=0.25)]
    note: str | None = None


class Cash(BaseModel):
    way: Literal["cash"] = "cash"
    paid: int


class Card(BaseModel):
    way: Literal["card"] = "card"


class Order(BaseModel):
    payment: Annotated[Cash | Card, Field(discriminator="way")]
    kind: Literal["order", "offer"]
    lines: Annotated[list[Line], Field(min_length=2)]
    parent: "Order | None"


@pytest.mark.parametrize("seed", seeds(60, 500))
def test_instances_of_random_schemas_follow_them(seed: int) -> None:
    schema = random_schema(Random(seed))
    found = json.loads(json.dumps(instance_of(schema)))
    assert Draft202012Validator(schema).is_valid(found)
    assert jsonschema_rs.is_valid(schema, found)


@pytest.mark.parametrize("seed", seeds(60, 500))
def test_what_cannot_be_made_is_refused_and_nothing_else_is_made(seed: int) -> None:
    schema = wild_schema(Random(seed))
    if any(word in json.dumps(schema) for word in ('"oneOf"', '"$ref": "#"')):
        return  # which of several holds is not looked at, and validators do not end
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            found = instance_of(schema)
        except BadInput:
            return
        assert Draft202012Validator(schema).is_valid(found)


def test_a_class_is_filled_with_what_it_needs() -> None:
    found = instance_of(Order.model_json_schema())
    order = Order.model_validate(found)
    assert (order.kind, order.parent, len(order.lines)) == ("order", None, 2)
    assert order.lines[0].article == "AA-0000"
    assert order.payment.way == "cash"  # told apart by it, so it is written


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, "schema: nothing follows it"),
        ({"properties": {"a": {"not": {}}}, "required": ["a"]}, "a: not: no answer is made of that"),
        ({"$ref": "#/$defs/a"}, "#/\\$defs/a is not in the schema"),
        ({"$ref": "#"}, "names itself without an end"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number was found"),
        ({"type": "string", "pattern": "(?!x)x"}, "no text was found"),
    ],
)
def test_a_refusal_names_place_and_word(schema: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        instance_of(schema)


def test_a_schema_may_be_deep() -> None:
    schema: dict[str, Any] = {"const": 1}
    for _ in range(DEEP):
        schema = {"properties": {"a": schema}, "required": ["a"]}
    assert json.dumps(instance_of(schema)).count("a") == DEEP


class Leaf(BaseModel):
    value: int


class Sum(BaseModel):
    terms: Annotated[list["Sum | Leaf"], Field(min_length=3)]


def test_what_names_itself_has_a_short_instance() -> None:
    assert instance_of(Sum.model_json_schema()) == {"terms": [{"value": 0}] * 3}


@pytest.mark.parametrize(
    ("pattern", "least", "text"),
    [
        ("^[a-c]{2,}$", 0, "aa"),
        ("^[a-c]{2,}$", 5, "aaaaa"),
        (r"\d{3}-(red|blue)?", 0, "000-"),
        (r"^[^a-z\s]+\.$", 0, "0."),
        ("(?P<x>a)(b|c)*", 3, "abb"),
    ],
)
def test_a_text_matches_an_expression(pattern: str, least: int, text: str) -> None:
    assert text_matching(pattern, least) == text
