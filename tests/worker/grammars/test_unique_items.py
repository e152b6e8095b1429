"""Items that differ: followed where few values are listed, and where there is one item at most."""

import json
from enum import Enum
from itertools import product
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter

from llama_herd.worker.grammars.judge import judge_form
from tests.worker.grammars.taking import takes

Color = Enum("Color", {"RED": "red", "GREEN": "green", "BLUE": "blue"}, type=str)
COLORS = ["red", "green", "blue"]
LISTED = {"type": "array", "uniqueItems": True}
OF_THREE = {**LISTED, "items": {"anyOf": [{"const": one} for one in COLORS]}}


@pytest.mark.parametrize(
    ("schema", "values", "most"),
    [
        (TypeAdapter(set[Color]).json_schema(), COLORS, 3),
        (TypeAdapter(frozenset[Literal["red", "green", "blue"]]).json_schema(), COLORS, 3),
        (TypeAdapter(set[bool]).json_schema(), [True, False], 2),
        (OF_THREE, COLORS, 3),
        ({**OF_THREE, "maxItems": 2}, COLORS, 2),
        ({**LISTED, "items": {"enum": [*range(5)]}}, [*range(5)], 5),
        ({**LISTED, "items": {"enum": [1, True, "1", None]}}, [1, True, "1", None], 4),
        ({**LISTED, "items": {"enum": [*range(9)]}, "maxItems": 2}, [1, 8], 2),
        ({**LISTED, "maxItems": 1}, ["any"], 1),
    ],
)
def test_items_of_few_values_come_once_each_in_any_order(
    schema: dict[str, Any], values: list[Any], most: int
) -> None:
    answer = judge_form("json", json.dumps(schema))
    assert answer.kind == "text", answer.text
    for length in range(4):
        for items in product(values, repeat=length):
            is_good = length <= most and len(set(map(json.dumps, items))) == length
            assert takes(answer.text, json.dumps(items, separators=(",", ":"))) == is_good, items


def test_what_need_not_differ_may_be_the_same() -> None:
    answer = judge_form("json", json.dumps({"type": ["array", "null"], "uniqueItems": False}))
    assert takes(answer.text, "[1,1]")
    assert takes(answer.text, "null")


@pytest.mark.parametrize(
    "items",
    [
        {"type": "string"},
        {"enum": [*range(6)]},
        {"enum": [1, [2]]},
        {"enum": ["a", 5], "type": "string"},
        {"enum": ["a", None], "type": ["string", "null"]},
        {"enum": ["a", "b"], "minLength": 2},
        {"anyOf": [{"const": "a"}, {"type": "null"}]},
        True,
    ],
)
def test_other_items_that_differ_are_refused(items: Any) -> None:
    answer = judge_form("json", json.dumps({**LISTED, "items": items}))
    fix = "Fix: leave it out, as with a list in place of a set"
    complaint = f"uniqueItems is not supported where items may have many values. {fix}"
    assert (answer.kind, answer.text) == ("failed", complaint)
