"""Look-ahead at the beginning of patterns, as people and libraries write it."""

import json
import re

import pytest

from llama_herd.worker.grammars.judge import judge_form
from tests.worker.grammars.taking import takes

#: Of pydantic 2.12 for Decimals, of zod 4 for an address and a host, and of people.
PATTERNS = (
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$",
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    r"^(?=.{1,9}\.?$)[a-z]+(?:\.[a-z]+)*\.?$",
    r"^(?=.*[A-Z])(?=.*\d).{4,}$",
    r"(?=.*[A-Z])(?=.*\d)[a-zA-Z\d]{4,}$",
    r"^(?!\s*$).+$",
    r"^(?!\s+$).*$",
    r"^(?!$)[a-z.]*$",
    r"^(?![^a-z]).*$",
    r"^(?!.*\s).*$",
    r"^(?!\D).*$",
    r"^(?!-)(?!.*--)[a-z0-9-]+$",
)
TEXTS = (
    *(
        "",
        " ",
        ".",
        "-",
        "+.",
        "1",
        "-1.25",
        "0012.50",
        "12.345",
        "1234.5",
        "a",
        "é",
        "abc",
        "a b",
        "-a",
        "a-b",
    ),
    *(
        "a--b",
        "a--",
        "--",
        "a.b",
        "a..b",
        ".a",
        "a.b.",
        "a.bcdefghij",
        "A1bc",
        "A1b",
        "abcd1",
        "ABCDE",
        "1A2B3",
    ),
    *("a@b.cd", "a.b@c.de", "a..b@c.de", ".a@b.cd", "a.@b.cd", "a'+b@c-d.ef", "a@b.c"),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_is_taken_where_the_pattern_matches_it(pattern: str) -> None:
    answer = judge_form("json", json.dumps({"type": "string", "pattern": pattern}))
    assert answer.kind == "text", answer.text
    matched = [text for text in TEXTS if re.search(pattern, text)]
    assert [text for text in TEXTS if takes(answer.text, json.dumps(text, ensure_ascii=False))] == matched
    assert 0 < len(matched) < len(TEXTS)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(?!foo|bar).*$",
        r"^(?!ab).*$",
        r"^(?=a)b|c$",
        r"^a(?=b)b$",
        r"^(?:(?=a)a|b)$",
        r"^(?=.*\d)(?<!x)a$",
        r"^(?!.*(?=a)).*$",
        r"^(?=a",
        r"^(?!",
    ],
)
def test_other_look_around_is_refused(pattern: str) -> None:
    answer = judge_form("json", json.dumps({"type": "string", "pattern": pattern}))
    assert answer.text == "pattern is not supported: (? that begins no group. Fix: no look-around, no flags"


def test_look_ahead_stands_beside_other_bounds() -> None:
    schema = {"type": "string", "pattern": "^(?=.*b)[ab]*$", "format": "hostname", "maxLength": 3}
    answer = judge_form("json", json.dumps({**schema, "allOf": [{"minLength": 2}]}))
    taken = [one for one in ("b", "ab", "aa", "ba", "aaab") if takes(answer.text, json.dumps(one))]
    assert taken == ["ab", "ba"]
