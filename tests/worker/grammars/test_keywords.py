"""Keywords of schemas: what belongs together is read together, and what says nothing changes nothing."""

import json
from typing import Any

import pytest
from jsonschema.validators import SPECIFICATIONS

from llama_herd.worker.grammars.judge import judge_form
from llama_herd.worker.grammars.narrowed_schema import KEYWORDS
from tests.worker.grammars.taking import takes

ITEMS = {"items": [{"type": "integer"}]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({**ITEMS, "allOf": [{}], "additionalItems": False}, "[1]", "[1,2]"),
        ({"additionalItems": False, "anyOf": [{}], **ITEMS}, "[1]", "[1,2]"),
        (
            {"patternProperties": {"^a": True}, "allOf": [{}], "additionalProperties": False},
            '{"a":1}',
            '{"b":1}',
        ),
    ],
)
def test_what_stands_between_keywords_parts_them_not(schema: dict[str, Any], good: str, bad: str) -> None:
    answer = judge_form("json", json.dumps(schema))
    assert [takes(answer.text, one) for one in (good, bad)] == [True, False]


@pytest.mark.parametrize("key", ["nullable", "example", "deprecated", "x-unit", "discriminator"])
def test_a_note_beside_a_reference_that_comes_back_changes_nothing(key: str) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node", key: True}}}
    answer = judge_form("json", json.dumps({"$ref": "#/$defs/node", "$defs": {"node": node}}))
    assert answer.kind == "text", answer.text
    assert takes(answer.text, '{"next":{"next":{}}}')


#: What the specifications call an annotation.
NOTES = frozenset(
    {
        *("$comment", "contentEncoding", "contentMediaType", "contentSchema", "default", "deprecated"),
        *("description", "examples", "readOnly", "title", "writeOnly"),
    }
)


def test_every_keyword_of_the_specifications_is_known() -> None:
    texts = {uri: SPECIFICATIONS.contents(uri) for uri in SPECIFICATIONS if "draft-03" not in uri}
    found = {key for one in texts.values() if isinstance(one, dict) for key in one.get("properties", {})}
    assert {"$dynamicRef", "dependencies", "id", "unevaluatedItems"} < found
    assert found - NOTES == KEYWORDS
