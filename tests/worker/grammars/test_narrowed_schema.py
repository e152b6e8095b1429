"""What a schema's keywords must be: another value is refused with its place, and ends no judge."""

import json
from typing import Any

import pytest

from llama_herd.worker.grammars.judge import judge_form

#: Values of every kind, none of which any of these keywords takes.
WRONG: dict[str, tuple[Any, ...]] = {
    "allOf": (None, True, 5, "a", {}),
    "format": (None, True, 5, [], {}),
    "maximum": (None, True, "a", [], {}, float("nan")),
    "minProperties": (None, "a", [], {}),
    "multipleOf": (None, True, 0, "a", [], {}, float("nan"), 10**400),
    "properties": (None, True, 5, "a", [1]),
    "required": (None, True, 5, "a", [5], [{}], [[]]),
    "type": (None, True, 5, {}),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, all_ in WRONG.items() for value in all_])
@pytest.mark.parametrize("beside", [{}, {"format": "date"}, {"patternProperties": {"a": {}}}])
def test_a_value_of_another_kind_is_refused_where_it_stands(
    key: str, value: object, beside: dict[str, Any]
) -> None:
    answer = judge_form("json", json.dumps({"items": {**beside, key: value}}))
    assert answer.kind == "failed"
    assert answer.text.startswith(f"items.{key} ")


@pytest.mark.parametrize(
    ("key", "bound"), [("minimum", 10**400), ("exclusiveMaximum", -(10**400)), ("minimum", 1e400)]
)
def test_a_bound_beyond_all_doubles_leaves_no_number(key: str, bound: float) -> None:
    answer = judge_form("json", json.dumps({key: bound}))
    assert (answer.kind, answer.text) == ("failed", f"{key} leaves no number that can be followed")
