"""How much JSON a body may be: its values are counted before it is read."""

import json

import pytest

from llama_herd.tasks.gateway.call import parse_object
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.openai.request_json import MAX_FIELDS
from llama_herd.tasks.protocol.bounded_json import MAX_CONTAINERS, MAX_DEPTH

SETTINGS = GatewaySettings.read()


def test_a_text_may_have_any_characters() -> None:
    body = {"prompt": '[{"a": 1}, {}], \\" \\' * 9000, "model": "tales"}
    assert parse_object(json.dumps(body).encode(), SETTINGS) == body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"messages": [{}] * MAX_CONTAINERS},
            f"{MAX_CONTAINERS} objects and arrays, got at least {MAX_CONTAINERS + 2}",
        ),
        ({"prompt": [0] * 100_000}, "98304 values and names, got at least "),
        ({str(n): 0 for n in range(200)}, f"{MAX_FIELDS} fields, got 200"),
        ({"sampling": {str(n): 0 for n in range(200)}}, f"{MAX_FIELDS} fields in sampling, got 200"),
        (b"[" + b'""' * 120_000, "strings"),
        ({"prompt": json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)}, f"{MAX_DEPTH} levels deep, got at least"),
        (
            {"messages": [{"tool_calls": [{"function": {"arguments": json.dumps([[]] * MAX_CONTAINERS)}}]}]},
            "objects and arrays",
        ),
    ],
)
def test_too_much_is_refused_with_both_numbers(body: object, words: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Problem, match=words) as refused:
        parse_object(raw, SETTINGS)
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_what_is_counted_is_what_is_read(encoding: str) -> None:
    """In another encoding nothing of it could be counted by its bytes."""
    with pytest.raises(Problem) as refused:
        parse_object(json.dumps({"prompt": "x"}).encode(encoding), SETTINGS)
    assert refused.value.code == "invalid_json"


def test_a_field_that_comes_twice_is_named() -> None:
    with pytest.raises(Problem, match="the body has the field n twice") as refused:
        parse_object(b'{"prompt": "x", "n": 1, "n": 2}', SETTINGS)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_a_number_has_few_digits() -> None:
    with pytest.raises(Problem, match=r"at most 100 digits in a number, got 4000"):
        parse_object(b'{"prompt": [' + b"9" * 4000 + b"]}", SETTINGS)
