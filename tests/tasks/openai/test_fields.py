"""Each field that OpenAI's client can send: taken, ignored or refused by name, as docs/openai.md says."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llama_herd.errors import InvalidJob
from llama_herd.tasks.gateway.completion_request import OWN_FIELDS, STREAM_OPTIONS
from llama_herd.tasks.openai.body_schema import body_schema
from llama_herd.tasks.openai.other_fields import REFUSED
from llama_herd.tasks.openai.request_body import CHAT, COMPLETIONS, ENDPOINTS, Endpoint, RequestBody
from llama_herd.tasks.settings import Settings
from tests.openai_types import fields_of, values_of, variants_of

PAGE = Path(__file__).parents[3] / "docs" / "openai.md"
BATCH = PAGE.with_name("batch.md")
ROW = re.compile(r"^\| `([a-z_.]+)` \| (taken|ignored|refused|only `.+?`)(?:: (.+))? \|$", re.MULTILINE)
VLLMS_OPTIONS = {"continuous_usage_stats"}
#: How many fields the types have, and what becomes of them: a new one wants a decision.
COUNTS = {
    COMPLETIONS: {"taken": 16, "ignored": 1, "refused": 0, "only": 1},
    CHAT: {"taken": 21, "ignored": 8, "refused": 3, "only": 5},
}
SOURCE: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x"},
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
}


def params(endpoint: Endpoint) -> dict[str, Any]:
    """The fields of a request, with their types."""
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    module = chat_create_params if endpoint == CHAT else completion_create_params
    kinds = variants_of(module.CompletionCreateParams)
    return {name: kind for one in kinds for name, kind in fields_of(one).items()}


def nested(kind: Any) -> set[str]:
    """The fields of the objects that a field holds, or of those in its list."""
    found = set[str]()
    for variant in variants_of(kind):
        inner = [variant, *(one for part in getattr(variant, "__args__", ()) for one in variants_of(part))]
        found = found.union(*map(fields_of, inner))
    return found


@cache
def told(endpoint: Endpoint) -> dict[str, tuple[str, str]]:
    """What the page says of each field of an endpoint."""
    sections = re.findall(r"^## (`.+`)\n((?:(?!^## ).*\n)*)", PAGE.read_text(), re.MULTILINE)
    text = "".join(rest for title, rest in sections if f"`{endpoint}`" in title)
    rows = ROW.findall(text)
    found = {name: (outcome, why) for name, outcome, why in rows}
    assert len(found) == len(rows) == text.count("\n| `")
    return found


def holds_refused(endpoint: Endpoint, name: str, value: Any) -> bool:
    """Whether an object of a value, or in its list, has a field that is refused."""
    objects = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
    parts = {part for one in objects for part in one}
    return any(told(endpoint).get(f"{name}.{part}", ("",))[0] == "refused" for part in parts)


def errors(endpoint: Endpoint, name: str, value: Any, **beside: Any) -> list[str]:
    """What is said against a value, if no more is given without what it needs beside it."""
    try:
        RequestBody(endpoint, {**SOURCE[endpoint], **beside, name: value}).job(Settings())
    except InvalidJob as error:
        return [f"{one.field}: {one.message}" for one in error.fields]
    return []


def outcome_of(endpoint: Endpoint, name: str) -> str:
    """What the code does with a field."""
    if name in OWN_FIELDS:
        return "taken"
    body = RequestBody(endpoint, {name: object()})
    for error in body.errors:
        if error.message.startswith("only supported as"):
            return "only"
        if error.message.startswith("not supported"):
            return "refused"
    is_used = body.errors or body.fields or body.sampling or name in (*SOURCE[endpoint], "reasoning_effort")
    return "taken" if is_used else "ignored"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_page_tells_of_every_field_and_of_no_other(endpoint: Endpoint) -> None:
    theirs = params(endpoint)
    ours = set(body_schema(endpoint)["properties"]) | (REFUSED.keys() if endpoint == CHAT else set())
    rows = told(endpoint)
    wanted = theirs.keys() | ours
    for name, kind in theirs.items():
        if rows.get(name, ("",))[0] == "taken" and name != "messages":
            wanted |= {f"{name}.{part}" for part in nested(kind)}
    wanted |= {f"stream_options.{part}" for part in VLLMS_OPTIONS}
    assert rows.keys() ^ wanted == set()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_the_page_tells_is_what_is_done(endpoint: Endpoint) -> None:
    for name, (outcome, why) in told(endpoint).items():
        if "." in name:
            continue
        assert outcome_of(endpoint, name) == outcome.split()[0], name
        if outcome == "refused":
            (message,) = [one for one in errors(endpoint, name, "x") if one.startswith(f"{name}: ")]
            assert message.startswith(f"{name}: not supported"), name
        if outcome != "taken":
            assert why, f"{name}: why?"


def test_the_page_of_batches_tells_which_of_these_fields_their_rows_lack() -> None:
    (lacking,) = re.findall(r"\(openai\.md\), but not (.*?), which", BATCH.read_text(), re.S)
    assert set(re.findall(r"`(\w+)`", lacking)) == set(OWN_FIELDS)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_value_of_the_types_is_taken_or_refused_by_the_name_of_its_field(endpoint: Endpoint) -> None:
    rows = told(endpoint)
    for name, kind in params(endpoint).items():
        for value in () if name in OWN_FIELDS else values_of(kind):
            found = errors(endpoint, name, value)
            foreign = [one for one in found if not re.match(rf"{name}\b|body: .*\b{name}\b", one)]
            assert not foreign, (name, value)
            outcome = rows[name][0]
            if (value is None and name not in SOURCE[endpoint]) or outcome == "ignored":
                assert not found, (name, value)
            elif outcome == "refused" or holds_refused(endpoint, name, value):
                assert found, (name, value)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_description_tells_of_every_part_that_is_taken(endpoint: Endpoint) -> None:
    described = body_schema(endpoint)["properties"]
    for row, (outcome, _) in told(endpoint).items():
        name, _, part = row.partition(".")
        assert outcome != "taken" or part in json.dumps(described[name]), row


def test_the_description_tells_of_each_choice_among_tools_that_is_taken() -> None:
    given = {"type": "function", "function": {"name": "f"}}
    schema = body_schema(CHAT)["properties"]["tool_choice"]
    choices = [
        *(None, "none", "auto", "required", given, "any", 5, {"type": "function"}, {**given, "strict": True}),
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [given]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [given]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
        {"type": "allowed_tools", "mode": "auto", "tools": [given]},
    ]
    for choice in choices:
        is_taken = not errors(CHAT, "tool_choice", choice, tools=[given])
        assert Draft202012Validator(schema).is_valid(choice) == is_taken, choice


def test_no_field_of_a_new_version_comes_unseen() -> None:
    for endpoint in ENDPOINTS:
        outcomes = [told(endpoint)[name][0].split()[0] for name in params(endpoint)]
        assert {one: outcomes.count(one) for one in COUNTS[endpoint]} == COUNTS[endpoint]


def test_a_stream_s_options_are_those_of_the_types() -> None:
    assert nested(params(CHAT)["stream_options"]) == set(STREAM_OPTIONS) - VLLMS_OPTIONS
