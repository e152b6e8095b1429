"""Laws of grammars in GBNF: they take the texts that llama.cpp's notation says, and no others."""

import random
import re

import pytest

from llama_herd.worker.grammars.judge import judge_form
from tests.examples import seeds
from tests.worker.grammars.taking import takes

#: Names that differ in little things, or mean something in Lark.
NAMES = ("start", "Ab", "aB", "AB", "a-b", "a_b", "T0", "r0", "1")
#: Literals and classes in GBNF, each with an expression for the same.
ATOMS = (
    *(
        ('"a"', "a"),
        ('"\\u0061"', "a"),
        ('"\\x62"', "b"),
        ('"\\["', r"\["),
        ('"\\U0001F600"', "😀"),
        ('""', ""),
    ),
    *(("[ab]", "[ab]"), ("[^a\\]]", r"[^a\]]"), ("[a&&b]", "[a&b]"), ("[\\u0061-\\u0062]", "[ab]")),
    *(
        ("[a-]", "[a-]"),
        ('"/"', "/"),
        ("[/[]", r"[/\[]"),
        (".", "(?s:.)"),
        ('"\\n"', "\n"),
        ('"{0}"', r"\{0\}"),
    ),
)
COUNTS = ("*", "+", "?", "{0}", "{2}", "{1,2}", "{1,}", "{0,0}")
TEXTS = (
    "",
    "a",
    "b",
    "aa",
    "ab",
    "ba",
    "bb",
    "[",
    "/",
    "😀",
    "\n",
    "&",
    "-",
    "]",
    "aba",
    "aab",
    "{0}",
    "a😀",
    "[a",
)


def expression(rng: random.Random, names: dict[str, str], depth: int = 3) -> tuple[str, str]:
    """A random expression in GBNF, and the same one in Python."""
    kind = rng.randrange(6) if depth else 0
    if kind == 0 and names and rng.random() < 0.4:
        name = rng.choice(list(names))
        return name, names[name]
    if kind <= 1:
        return rng.choice(ATOMS)
    one, other = (expression(rng, names, depth - 1) for _ in range(2))
    if kind == 2:
        count = rng.choice(COUNTS)
        return f"( {one[0]} ){count}", f"(?:{one[1]}){count}"
    if kind == 3:
        return f"({one[0]} |\n {other[0]})", f"(?:{one[1]}|{other[1]})"
    return f"{one[0]} {other[0]}", f"{one[1]}{other[1]}"


@pytest.mark.parametrize("seed", seeds(20, 2000))
def test_a_grammar_takes_the_texts_that_an_expression_takes(seed: int) -> None:
    rng, names, lines = random.Random(seed), dict[str, str](), list[str]()
    for name in rng.sample(NAMES, 3):
        text, pattern = expression(rng, names)
        lines.append(f"{name} ::= {text} # {name}")
        names[name] = f"(?:{pattern})"
    text, pattern = expression(rng, names)
    grammar = "\n".join([*lines, f"root ::= {text}"])
    answer = judge_form("grammar", grammar)
    assert answer.kind == "text", (grammar, answer)
    assert {one: takes(answer.text, one) for one in TEXTS} == {
        one: re.fullmatch(pattern, one) is not None for one in TEXTS
    }, grammar


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("root ::= start\nstart ::= [a]", "a"),
        ('root ::= Ab aB\nAb ::= "a"\naB ::= "b"', "ab"),
        ('root ::= "(" root? ")" # again', "(())"),
        ("root ::= a-b*\n\na-b ::= [0-9]{2,3}\n  # end", "123"),
    ],
)
def test_rules_keep_their_names_apart(grammar: str, text: str) -> None:
    answer = judge_form("grammar", grammar)
    assert takes(answer.text, text), answer


@pytest.mark.parametrize(
    ("grammar", "complaint"),
    [
        ('root ::= "CANARY', "line 1: Unexpected end of input"),
        ("root ::= CANARY", "a rule that is used is not defined"),
        ('CANARY ::= "\nroot ::= "', "a rule that is used is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2: a rule is defined twice"),
        ('root ::= "a" )', "line 1: there must be the end of the line"),
        ('root ::= "a"{2,1}', "line 1: a count ends below its beginning"),
        ('root ::= "\\uD800"', "line 1: no character has this code"),
        ("root ::= " + "(" * 200, "line 1: groups are nested too deeply"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(grammar: str, complaint: str) -> None:
    answer = judge_form("grammar", grammar)
    assert (answer.kind, answer.text) == ("failed", complaint)
