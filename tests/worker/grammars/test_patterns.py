"""Patterns of schemas: they match what ECMAScript's match, and what is no pattern is refused."""

import json

import pytest

from llama_herd.worker.grammars.judge import judge_form
from tests.worker.grammars.taking import takes

COUNTS = ("*", "+", "?", "{2}", "{1,}", "{0,2}")


def complaint(pattern: str) -> str:
    answer = judge_form("json", json.dumps({"type": "string", "pattern": pattern}))
    return answer.text if answer.kind == "failed" else ""


@pytest.mark.parametrize("before", ["", "^", "a|", "(?:", "(?<n>", "a*?", "a{2}?", "(a|"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_count_stands_behind_something(before: str, count: str) -> None:
    counts_nothing = "is not supported: a count stands behind nothing that it counts"
    assert counts_nothing in complaint(f"{before}{count}")
    end = ")" * before.count("(")
    assert not complaint(f"{before}a{count}{end}")


@pytest.mark.parametrize(
    "text", ["a", "~", "\u00e9", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
)
def test_each_way_to_write_a_character_means_it(text: str) -> None:
    code = ord(text)
    ways = [text, f"\\u{{{code:x}}}", f"[\\u{{{code:X}}}]", f"[^\\u{{{code:06x}}}]"]
    ways += [f"\\x{code:02x}"] if code < 0x100 else []
    ways += [f"\\u{code:04x}"] if code < 0x10000 else [json.dumps(text)[1:-1]]
    for way in ways:
        answer = judge_form("json", json.dumps({"type": "string", "pattern": f"^{way}$"}))
        neighbour = "b" if text != "b" else "c"
        taken = [takes(answer.text, json.dumps(one, ensure_ascii=False)) for one in (text, neighbour)]
        assert taken == ([False, True] if "[^" in way else [True, False]), way


@pytest.mark.parametrize(
    "pattern", ["\\ud800", "\\udbff", "\\udc00", "\\udfff", "[\\udfff]", "\\u{dfff}", "\ud800"]
)
def test_half_a_pair_of_surrogates_is_refused(pattern: str) -> None:
    assert complaint(pattern) == "pattern is not supported: half a pair of surrogates"


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("[", "a class without an end"),
        ("[a", "a class without an end"),
        ("[^", "a class without an end"),
        ("[]", "a class that holds nothing"),
        ("{", "a brace that is no count needs a backslash"),
        ("a}", "a brace that is no count needs a backslash"),
        ("\\q", "a backslash and what follows it"),
        ("a\\", "a backslash and what follows it"),
        ("[\\q]", "a backslash and what follows it"),
    ],
)
def test_what_is_wrong_with_a_pattern_is_told(pattern: str, problem: str) -> None:
    assert complaint(pattern) == f"pattern is not supported: {problem}"
