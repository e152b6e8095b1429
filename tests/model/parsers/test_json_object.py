"""An object of JSON is read in pieces as the standard library reads it whole."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from llama_herd.model.parsers.json_object import MAX_DEPTH, JsonObject
from tests.examples import for_any

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def read(text: str) -> JsonObject:
    found = JsonObject()
    for char in text:
        found.read(char, 0)
    return found


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=lambda name: 1 / 0), dict)
    except (ValueError, ZeroDivisionError):
        return False


@for_any(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_objects_are_whole_at_their_last_brace(
    value: dict[str, Any], is_ascii: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    assert not read(text[:-1]).is_whole
    found = read(text)
    assert found.is_whole
    assert found.text == text
    assert {name: json.loads(one) for name, one in found.members().items()} == value
    whole = JsonObject()
    assert whole.read(f"{text} rest", 0) == len(text)


TEXTS = st.lists(
    st.sampled_from(
        [*'{}[]:,"\\ \n\t-+.0123eEu', "true", "nul", '"a"', '{"a":', "1.5e-3", "\\u00e9", "\x1f", "é"]
    ),
    max_size=14,
).map("".join)


@for_any(TEXTS | TEXTS.map(lambda text: '{"a":' + text + "}"))
def test_a_text_is_an_object_if_the_standard_library_says_so(text: str) -> None:
    text = text.lstrip("\ufeff")
    found = JsonObject()
    end = found.read(text, 0)
    assert (found.is_whole and not text[end:].strip(" \t\n\r")) == is_object(text)
    if found.is_wrong:
        assert not any(is_object(text[: end + 1] + rest) for rest in ("", "}", '"}', ":1}", "]}", "0}"))


@pytest.mark.parametrize("opening", ["{", '{"a":', '{"a":['])
def test_every_order_of_few_tokens_is_an_object_if_the_standard_library_says_so(opening: str) -> None:
    for num in range(5):
        for tokens in itertools.product(("{", "}", "[", "]", ":", ",", '"a"', "1"), repeat=num):
            text = opening + "".join(tokens)
            found = JsonObject()
            assert (found.read(text, 0) == len(text) and found.is_whole) == is_object(text), text


@pytest.mark.parametrize(
    "text", ['"a"', "1", "true", "[1]", "[{}]", "}", "{,}", '{"a" 1}', "{1:1}", '{"a":}']
)
def test_what_is_no_object_is_wrong_at_once(text: str) -> None:
    assert read(text).is_wrong


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_its_depth_is_bounded(depth: int) -> None:
    text = '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)
    assert read(text).is_whole == (depth <= MAX_DEPTH)


def test_the_last_of_two_members_counts() -> None:
    assert read('{"a": 1, "a" : {"a": 3} , "\\u0061": [ 2 ]}').members() == {"a": "[ 2 ]"}
