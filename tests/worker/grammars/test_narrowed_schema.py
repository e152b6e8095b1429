"""What a schema's keywords must be: another value is refused with its place, and ends no judge."""

import datetime
import fractions
import ipaddress
import json
import pathlib
import re
import zoneinfo
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import jsonschema_rs
import pytest
from pydantic import StringConstraints, TypeAdapter, networks, types
from pydantic.errors import PydanticUserError

from llama_herd.worker.grammars.formats import FORMATS
from llama_herd.worker.grammars.judge import judge_form
from tests.worker.grammars.taking import takes

#: Values of every kind, none of which any of these keywords takes.
WRONG: dict[str, tuple[Any, ...]] = {
    "allOf": (None, True, 5, "a", {}),
    "format": (None, True, 5, [], {}),
    "maximum": (None, True, "a", [], {}, float("nan")),
    "minLength": (None, True, "3", 2.5, -1, float("inf")),
    "maxItems": (None, "3", -2, [], {}),
    "minProperties": (None, "a", [], {}),
    "multipleOf": (None, True, 0, "a", [], {}, float("nan"), 10**400),
    "pattern": (None, True, 5, [], {}),
    "properties": (None, True, 5, "a", [1]),
    "required": (None, True, 5, "a", [5], [{}], [[]]),
    "type": (None, True, 5, {}, "text", ["string", "any"], [{}]),
    "items": (None, 5, "string"),
    "additionalProperties": (None, 5, "string", []),
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


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"minimum": 1, "exclusiveMinimum": True, "type": "integer"}, "2", "1"),
        ({"maximum": 1, "exclusiveMaximum": True, "type": "integer"}, "0", "1"),
        ({"minimum": 1, "exclusiveMinimum": False, "type": "integer"}, "1", "0"),
        ({"minItems": 1.0}, "[1]", "[]"),
        ({"properties": {"a": {"not": {}}}}, "{}", '{"a":1}'),
        ({"items": {"anyOf": [{"not": {}}, {"type": "null"}]}}, "[null]", "[1]"),
        ({"additionalProperties": {"not": True}}, "{}", '{"a":1}'),
    ],
)
def test_what_other_drafts_and_zod_write_is_followed(schema: dict[str, Any], good: str, bad: str) -> None:
    answer = judge_form("json", json.dumps(schema))
    assert answer.kind == "text", answer.text
    assert [takes(answer.text, one) for one in (good, bad)] == [True, False]


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("num_required", range(4))
def test_names_are_counted_as_far_as_they_can_be(num_required: int, is_closed: bool) -> None:
    names = ["a", "b", "c"]
    schema: dict[str, Any] = {"properties": {name: {} for name in names}, "required": names[:num_required]}
    schema |= {"additionalProperties": False} if is_closed else {}
    for least in range(4):
        answer = judge_form("json", json.dumps({**schema, "minProperties": least}))
        assert (answer.kind == "text") == (least <= num_required + is_closed), answer
        if answer.kind == "text":
            texts = [json.dumps(dict.fromkeys(names[:num], 1)) for num in range(4)]
            taken = [takes(answer.text, text) for text in texts]
            assert taken == [num >= max(num_required, least) for num in range(4)]


def test_of_several_keywords_the_one_that_is_not_followed_is_told() -> None:
    schema = {"properties": {"a": {"not": {}}, "b": {"not": {"const": 1}}}}
    assert (
        judge_form("json", json.dumps(schema)).text == "properties.b.not is not supported. Fix: leave it out"
    )


@pytest.mark.parametrize(
    "draft",
    [
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/schema#",
        "https://spec.openapis.org/oas/3.1/dialect/base",
        "https://spec.openapis.org/oas/3.2/dialect/2025-09-17",
    ],
)
def test_a_draft_that_is_spelled_otherwise_is_followed(draft: str) -> None:
    answer = judge_form("json", json.dumps({"$schema": draft, "prefixItems": [{"type": "null"}]}))
    assert answer.kind == "text", answer.text
    assert not takes(answer.text, "[1]")


@pytest.mark.parametrize("draft", ["https://a.example/b", "", 5, "http://json-schema.org/draft-03/schema#"])
def test_what_is_no_draft_is_refused(draft: object) -> None:
    answer = judge_form("json", json.dumps({"$schema": draft}))
    assert answer.text == "$schema must be a draft of JSON Schema from 4 on. Fix: leave it out"


def test_true_lets_any_value_through() -> None:
    assert takes(judge_form("json", "true").text, '{"a":[1]}')


#: Of each format a text, and one that is none.
OF_FORMATS = {
    "date": ("2024-02-29", "2023-02-29"),
    "time": ("23:59:59.5Z", "24:00:00Z"),
    "date-time": ("2024-02-29T01:02:03+01:00", "2024-02-29"),
    "duration": ("P1DT2H", "P"),
    "email": ("o.r-1@a-1.example.com", "a@localhost"),
    "byte": ("1g==", "1h=="),
    "hostname": ("a-1.example", "a-.example"),
    "ipv4": ("255.0.10.1", "256.0.10.1"),
    "ipv6": ("1::f", "1::f::2"),
    "uuid": ("01234567-89ab-cdef-0123-456789ABCDEF", "01234567"),
    **{
        f"uuid{one}": (f"01234567-89ab-{one}def-8123-456789ABCDEF", "01234567-89ab-0def-0123-456789ABCDEF")
        for one in range(1, 9)
    },
    "uri": ("https://a.example/b?c=%20#d", "a.example"),
}


@pytest.mark.parametrize("beside", [{}, {"minLength": 3, "maxLength": 100}, {"pattern": "1|a"}])
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_can_be_followed_also_beside_other_bounds(name: str, beside: dict[str, Any]) -> None:
    answer = judge_form("json", json.dumps({"type": "string", "format": name, **beside}))
    assert answer.kind == "text", answer.text
    good, bad = OF_FORMATS[name]
    assert takes(answer.text, json.dumps(good)) == (not beside.get("pattern") or bool(re.search("1|a", good)))
    assert not takes(answer.text, json.dumps(bad))


def _formats(schema: Any) -> Iterator[str]:
    """The formats that stand in a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("format"), str):
            yield schema["format"]
        for one in schema.values():
            yield from _formats(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _formats(one)


def pydantic_formats() -> set[str]:
    """Those of all types that pydantic brings, and of those of Python that it knows."""
    kinds: list[Any] = [getattr(module, name) for module in (networks, types) for name in module.__all__]
    kinds += [bytes, datetime.datetime, datetime.timedelta, fractions.Fraction, pathlib.Path, re.Pattern]
    kinds += [getattr(ipaddress, f"IPv{one}{what}") for one in "46" for what in ("Network", "Interface")]
    found = set[str]()
    for kind in [*kinds, zoneinfo.ZoneInfo, UUID]:
        try:
            found.update(_formats(TypeAdapter(kind).json_schema()))
        except (PydanticUserError, TypeError, ImportError):  # no type of a field, or it needs a package
            continue
    return found


def test_pydantics_formats_are_followed_or_say_nothing() -> None:
    found = pydantic_formats()
    assert {"uuid4", "password", "path", "file-path", "binary", "base64url", "ipvanyaddress"} < found
    given = {name: judge_form("json", json.dumps({"type": "string", "format": name})) for name in found}
    assert {name for name, answer in given.items() if answer.kind != "text"} == {"regex"}
    free = {name for name in found if takes(given[name].text, '"a"')} - OF_FORMATS.keys()
    assert free == found - OF_FORMATS.keys() - {"regex"}
    assert not free & jsonschema.FormatChecker.checkers.keys()


@pytest.mark.parametrize(
    "name", sorted({*jsonschema.FormatChecker.checkers, "iri", "url"} - OF_FORMATS.keys())
)
def test_a_format_that_validators_assert_is_followed_or_refused(name: str) -> None:
    answer = judge_form("json", json.dumps({"type": ["string", "null"], "format": name}))
    assert answer.text == "format is not supported. Fix: leave it out, or say it by a pattern"


@pytest.mark.parametrize("name", ["base64", "base64url", "base32", "base16"])
def test_a_text_in_an_encoding_is_one_in_draft_7_too(name: str) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": name}
    grammar = judge_form("json", json.dumps(schema)).text
    validator = jsonschema_rs.validator_for(schema)
    texts = ("", "YWI=", "YWJj", "YWI", "nd==", "a!==", "+//+", "-__-", "MFRGGZDF", "4a", "4")
    taken = [one for one in texts if takes(grammar, json.dumps(one))]
    assert taken == [one for one in texts if validator.is_valid(one)]


def test_python_reads_the_longest_duration() -> None:
    grammar = judge_form("json", json.dumps(TypeAdapter(datetime.timedelta).json_schema())).text
    longest = json.dumps("P999999Y999999M999999DT999999H999999M999999S")
    assert takes(grammar, longest)
    assert TypeAdapter(datetime.timedelta).validate_json(longest)
    assert not takes(grammar, json.dumps("P1000000D"))


def test_an_address_has_the_lengths_of_mail() -> None:
    grammar = judge_form("json", json.dumps({"type": "string", "format": "email"})).text
    host = f"{'b' * 43}." * 4
    longest = f"{'a' * 64}@{host}{'c' * 13}"
    assert len(longest) == 254
    for good in (longest, f"{'a.' * 31}a@b.cd", f"{'a-' * 31}a@{'b-' * 21}b.cd"):
        assert takes(grammar, json.dumps(good))
    for wrong in (f"a{longest}", f"{longest}c", f"{'a.' * 32}a@b.cd", f"a@{host}b.cd", "a@b.c1"):
        assert not takes(grammar, json.dumps(wrong))


#: What people, zod and OpenAPI's documents write beside `email`.
ADDRESSES = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$",
    r"^\S+@\S+\.\S+$",
    r"@(example|a-1)\.com$",
)


@pytest.mark.parametrize("pattern", ADDRESSES)
def test_an_address_may_have_a_pattern_too(pattern: str) -> None:
    answer = judge_form("json", json.dumps({"type": "string", "format": "email", "pattern": pattern}))
    assert answer.kind == "text", answer.text
    taken = [
        one for one in ("a.b@a-1.com", "a..b@a-1.com", "a.b@-a.com") if takes(answer.text, json.dumps(one))
    ]
    assert taken == ["a.b@a-1.com"]


NUMBER = {"type": "number"}
#: Schemas of records as zod and pydantic write them, each with texts that follow it, and others.
RECORDS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"propertyNames": True}, ['{"c":1}'], ['{"c":"1"}']),
    ({"propertyNames": {"type": "string"}}, ["{}", '{"c":1,"d":2}'], ['{"c":"1"}']),
    (
        {"propertyNames": {"type": "string", "enum": ["a", "b"]}},
        ["{}", '{"a":1,"b":2}'],
        ['{"c":1}', '{"a":""}'],
    ),
    ({"propertyNames": {"enum": ["a", "b", 5]}, "required": ["b"]}, ['{"b":2}'], ["{}", '{"b":1,"5":2}']),
    (  # a dict of an Enum
        {
            "propertyNames": {"$ref": "#/$defs/Color"},
            "$defs": {"Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"}},
        },
        ["{}", '{"red":1,"blue":2}'],
        ['{"c":1}', '{"red":""}'],
    ),
    ({"propertyNames": {"const": "a"}}, ["{}", '{"a":1}'], ['{"b":1}']),
    ({"propertyNames": {"minLength": 2}}, ['{"ab":1}', '{"é\\n":1}'], ['{"a":1}', '{"é":1}']),
    ({"propertyNames": {"minLength": 1, "maxLength": 2}}, ['{"ab":1}'], ['{"":1}', '{"abc":1}']),
    ({"propertyNames": {"maxLength": 1, "format": "path", "title": "A"}}, ['{"":1}'], ['{"ab":1}']),
    ({"propertyNames": {"format": "date"}}, ["{}", '{"2024-02-29":1}'], ['{"2023-02-29":1}', '{"a":1}']),
    ({"propertyNames": {"format": "email"}}, ['{"a@b.cd":1}'], ['{"a":1}']),
    ({"propertyNames": {"format": "password"}}, ['{"a":1}'], ['{"a":""}']),
    ({"propertyNames": {"type": "string", "pattern": "^x[0-9]$"}}, ['{"x1":1}'], ['{"y1":1}', '{"x1":""}']),
    ({"propertyNames": {"anyOf": [{"const": "a"}, {"enum": ["b"]}]}}, ['{"a":1,"b":2}'], ['{"c":1}']),
    (
        {"propertyNames": {"type": "string", "pattern": "^[a-z]{2,}$", "minLength": 1}},
        ['{"ab":1}'],
        ['{"a":1}'],
    ),
    (
        {"propertyNames": {"format": "uri", "minLength": 1}},
        ['{"https://a.example":1}'],
        ['{"a":1}', '{"":1}'],
    ),
    (
        {"propertyNames": {"maxLength": 3}, "patternProperties": {"^a.$": {"type": "boolean"}}},
        ['{"ab":true}'],
        ['{"ab":1}', '{"b":1}'],
    ),
    (  # as zod writes both: the one that is within the other
        {"propertyNames": {"format": "uuid", "pattern": "^(01234567-89ab-4def-8123-[0-9]{12})$"}},
        ['{"01234567-89ab-4def-8123-456789012345":1}'],
        ['{"01234567-89ab-4def-8123-4567890abcde":1}', '{"a":1}'],
    ),
    (
        {"propertyNames": {"format": "date", "pattern": r"^(?:\d{4}-\d{2}-\d{2})$"}},
        ['{"2024-02-29":1}'],
        ['{"2023-02-29":1}'],
    ),
    ({"propertyNames": {"minLength": 1, "readOnly": True, "examples": ["a"]}}, ['{"a":1}'], ['{"":1}']),
    (
        {"propertyNames": {"enum": ["a", "s"]}, "properties": {"s": {"type": "string"}, "b": True}},
        ['{"a":1,"s":""}'],
        ['{"s":1}', '{"b":1}'],
    ),
    (
        {"propertyNames": {"type": "string"}, "properties": {"s": {"type": "string"}}},
        ['{"s":"","c":1}'],
        ['{"s":1}'],
    ),
]


@pytest.mark.parametrize(("record", "good", "bad"), RECORDS)
def test_what_is_said_of_names_alone_is_followed(
    record: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    answer = judge_form("json", json.dumps({"type": "object", "additionalProperties": NUMBER, **record}))
    assert answer.kind == "text", answer.text
    assert [takes(answer.text, one) for one in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize("name", [UUID, datetime.date, pathlib.Path, Literal["2024-02-29"]])
def test_a_dict_of_pydantics_can_be_followed(name: Any) -> None:
    schema = TypeAdapter(dict[name, int]).json_schema()
    answer = judge_form("json", json.dumps(schema))
    assert answer.kind == "text", answer.text


@pytest.mark.parametrize(
    "bounds", [{"min_length": 2}, {"pattern": "^[ab]{2}$"}, {"pattern": "^[ab]{2}$", "min_length": 1}]
)
def test_a_dict_whose_names_are_bounded_can_be_followed(bounds: dict[str, Any]) -> None:
    schema = TypeAdapter(dict[Annotated[str, StringConstraints(**bounds)], int]).json_schema()
    answer = judge_form("json", json.dumps(schema))
    assert [takes(answer.text, one) for one in ('{"ab":1}', '{"a":1}')] == [True, False]


RECORD = {"type": "object", "patternProperties": {"^a$": True}}


@pytest.mark.parametrize(
    ("schema", "other"),
    [
        ({"patternProperties": {"^a$": True}}, False),
        ({"patternProperties": {"^a$": True}, "additionalProperties": True}, True),
        ({"patternProperties": {"^a$": True}, "properties": {"c": True}}, True),
        ({"patternProperties": {"^a$": True}, "required": ["b"]}, True),
        ({"allOf": [{"patternProperties": {"^a$": True}}, {"properties": {"b": True}}]}, True),
        ({"properties": {"b": True}, "$ref": "#/$defs/a", "$defs": {"a": RECORD}}, True),
        ({"properties": {"b": True}, "allOf": [RECORD]}, True),
    ],
)
def test_a_record_of_patterns_alone_has_no_other_names(schema: dict[str, Any], other: bool) -> None:
    answer = judge_form("json", json.dumps({"type": "object", **schema}))
    assert takes(answer.text, '{"b":1}') == other


@pytest.mark.parametrize(
    ("around", "text"),
    [
        ({"properties": {"b": RECORD}}, '{"b":{"b":1}}'),
        ({"type": "array", "items": RECORD}, '[{"b":1}]'),
        ({"additionalProperties": RECORD}, '{"c":{"b":1}}'),
        ({"anyOf": [RECORD, {"type": "null"}]}, '{"b":1}'),
        ({"allOf": [{"properties": {"b": RECORD}}]}, '{"b":{"b":1}}'),
        ({"allOf": [{"type": "array", "items": {"type": "array", "items": RECORD}}]}, '[[{"b":1}]]'),
        ({"properties": {"allOf": {"anyOf": [RECORD]}}}, '{"allOf":{"b":1}}'),
    ],
)
def test_a_record_has_no_other_names_wherever_it_stands(around: dict[str, Any], text: str) -> None:
    answer = judge_form("json", json.dumps(around))
    assert [takes(answer.text, one) for one in (text.replace('"b":1', '"a":1'), text)] == [True, False]


@pytest.mark.parametrize(
    "record",
    [
        {"propertyNames": {"minLength": 3, "pattern": "a"}},
        {"propertyNames": {"minLength": "3", "pattern": "a"}},
        {"propertyNames": {"maxLength": 3, "format": "date"}},
        {"propertyNames": {"minLength": 2}, "patternProperties": {"a": True}},
        {"propertyNames": {"pattern": "a", "anyOf": [{"const": "a"}]}},
        {"propertyNames": {"anyOf": [{"const": "a"}, {"minLength": 1}]}},
        {"propertyNames": {"minLength": True}},
        {"propertyNames": {"minLength": 1, "maxLength": True}},
        {"propertyNames": {"format": "hostname"}},
        {"propertyNames": {"format": "regex"}},
        {"propertyNames": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"enum": ["a"]}}},
        {"propertyNames": {"$ref": "#/$defs/b"}, "$defs": {"a": {"enum": ["a"]}}},
        {"propertyNames": {"enum": ["a"], "pattern": "a"}},
        {"propertyNames": {"format": "uuid", "pattern": "^0"}},
        {"propertyNames": {"format": "date", "pattern": "^$|^2024"}},
        {"propertyNames": {"format": "email", "pattern": "^a@[a-z.]+$"}},
        {"propertyNames": {"format": "hostname", "pattern": "^item"}},
        {"propertyNames": {"format": "hostname", "pattern": "^a|b$"}},
        {"propertyNames": {"enum": ["a"]}, "patternProperties": {"b": True}},
        {"propertyNames": {"pattern": "a"}, "properties": {"b": True}},
        {"propertyNames": {"pattern": "a"}, "patternProperties": {"b": True}},
        {"propertyNames": False},
    ],
)
def test_what_more_is_said_of_names_is_refused(record: dict[str, Any]) -> None:
    answer = judge_form("json", json.dumps({"type": "object", **record}))
    complaint = "propertyNames is not supported as it stands. Fix: one pattern, or an enum"
    assert (answer.kind, answer.text) == ("failed", complaint)
