"""The law's own judgement, where validators read less or more than the specification says."""

from typing import Any

import pytest

from tests.worker.grammars.verdicts import problem


@pytest.mark.parametrize("name", ["\\n", " ", "\ufeff", "\u1680", "\u2003", "\u3000", "\u2028"])
def test_white_space_is_what_ecmascript_calls_so(name: str) -> None:
    assert not problem(only_names(r"^\s$"), f'{{"{name}": 1}}')
    assert not problem(only_names(r"^[\s]$"), f'{{"{name}": 1}}')
    assert problem(only_names(r"^\S$"), f'{{"{name}": 1}}')


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"^\s$", "\x85"),
        (r"^\s$", "a"),
        ("^a$", "a\\n"),
        ("^.$", "\u2028"),
        ("^.$", "\\r"),
        (r"^\d$", "٣"),
        (r"^\W$", "é1"),
    ],
)
def test_what_only_others_would_match_is_no_such_name(pattern: str, name: str) -> None:
    assert problem(only_names(pattern), f'{{"{name}": 1}}')
    assert not problem({"patternProperties": {pattern: False}}, f'{{"{name}": 1}}')


def only_names(pattern: str) -> dict[str, Any]:
    return {"patternProperties": {pattern: {"type": "number"}}, "additionalProperties": False}
