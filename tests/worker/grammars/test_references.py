"""References in schemas: what cannot be followed is refused with its place."""

import json
from typing import Any

import pytest

from llama_herd.worker.grammars.judge import judge_form
from tests.worker.grammars.taking import takes

ITSELF = "is not supported: it leads back to itself"
NO_SCHEMA = "is not supported: it must name a schema, as one in $defs"


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (
            {"properties": {"": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"$ref": "#/$defs/y"}}},
            f"$defs.y.$ref {ITSELF}",
        ),
        ({"anyOf": [{"$ref": "#"}, {"type": "array"}]}, f"anyOf.0.$ref {ITSELF}"),
        ({"type": "array", "items": {"allOf": [{"$ref": "#/items"}]}}, f"items.allOf.0.$ref {ITSELF}"),
        ({"$anchor": "a", "$ref": "#a"}, f"$ref {ITSELF}"),
        ({"$id": "http://host/a", "oneOf": [{"$ref": "a"}]}, f"oneOf.0.$ref {ITSELF}"),
        (
            {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"type": "null", "anyOf": [{"$ref": "#/$defs/x"}]}}},
            f"$defs.y.anyOf.0.$ref {ITSELF}",
        ),
        ({"$ref": "#/a"}, f"$ref {NO_SCHEMA}"),
        ({"items": {"$ref": "https://host/a.json"}}, f"items.$ref {NO_SCHEMA}"),
        ({"items": {"$ref": "#a"}}, f"items.$ref {NO_SCHEMA}"),
        ({"properties": {"a": {"$ref": "#/properties"}}}, f"properties.a.$ref {NO_SCHEMA}"),
    ],
)
def test_what_leads_nowhere_is_refused(schema: dict[str, Any], complaint: str) -> None:
    answer = judge_form("json", json.dumps(schema))
    assert (answer.kind, answer.text) == ("failed", complaint)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"$ref": "#"}}}, '{"a":{"a":{}}}'),
        ({"properties": {"anyOf": {"$ref": "#"}}}, '{"anyOf":{}}'),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]}, "[[null],[]]"),
        ({"$defs": {"a/b": {"type": "null"}}, "$ref": "#/$defs/a~1b"}, "null"),
        ({"$defs": {"a": {"$anchor": "b", "type": "null"}}, "$ref": "#b"}, "null"),
        ({"$id": "http://host/a", "$defs": {"a": {"$id": "b", "type": "null"}}, "$ref": "b"}, "null"),
        ({"allOf": [{"type": "null"}, {"$ref": "#/allOf/0"}]}, "null"),
    ],
)
def test_what_leads_on_is_followed(schema: dict[str, Any], text: str) -> None:
    answer = judge_form("json", json.dumps(schema))
    assert takes(answer.text, text), answer


def test_a_place_counts_before_others_that_end_alike() -> None:
    inner = {"$defs": {"a": {"$ref": "#/$defs/a"}}}
    schema = {"$defs": {"a": {"type": "null"}, "b": inner}, "$ref": "#/$defs/a"}
    answer = judge_form("json", json.dumps(schema))
    assert takes(answer.text, "null"), answer
