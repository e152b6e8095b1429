"""How much JSON a body may be: its values are counted before it is read."""

import json
import random
from typing import Any

import pytest

from llama_herd.tasks.bounded_json import MAX_CONTAINERS, MAX_FIELDS, JsonSize
from llama_herd.tasks.gateway.body import parse_object
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.settings import GatewaySettings

SETTINGS = GatewaySettings.read()


def counted(value: Any) -> JsonSize:
    """The size of a value, as Python sees it."""
    parts = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    own = max(0, len(parts) - 1) + (len(value) if isinstance(value, dict) else 0)
    sizes = [JsonSize(int(isinstance(value, dict | list)), own), *map(counted, parts)]
    return JsonSize(sum(one.containers for one in sizes), sum(one.values for one in sizes))


def drawn(chance: random.Random, depth: int = 0) -> Any:
    texts = ("", "a", '"', "\\", '\\"', "[{,:", "é", "\n", '"},{"', "\\\\\\")
    match chance.randrange(6 if depth < 4 else 3):
        case 0:
            return "".join(chance.choices(texts, k=chance.randrange(5)))
        case 1:
            return chance.choice((1, -2.5, True, None))
        case 2:
            return chance.choice(texts)
        case 3:
            return [drawn(chance, depth + 1) for _ in range(chance.randrange(5))]
        case _:
            names = {"".join(chance.choices(texts, k=2)) for _ in range(chance.randrange(5))}
            return {name: drawn(chance, depth + 1) for name in names}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_size_is_that_of_what_is_made(seed: int, is_ascii: bool) -> None:
    value = drawn(random.Random(seed))
    raw = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert JsonSize.measure(raw, 10_000) == counted(value)


def test_a_text_may_have_any_characters() -> None:
    body = {"prompt": '[{"a": 1}, {}], \\" \\' * 9000, "model": "tales"}
    assert parse_object(json.dumps(body).encode(), SETTINGS) == body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"messages": [{}] * MAX_CONTAINERS},
            f"{MAX_CONTAINERS} objects and arrays, got {MAX_CONTAINERS + 2}",
        ),
        ({"prompt": [0] * 100_000}, "98304 values and names, got 100000"),
        ({str(n): 0 for n in range(200)}, f"{MAX_FIELDS} fields, got 200"),
        ([""] * 120_000, "strings"),
        (
            {"messages": [{"tool_calls": [{"function": {"arguments": json.dumps([[]] * MAX_CONTAINERS)}}]}]},
            "objects and arrays",
        ),
    ],
)
def test_too_much_is_refused_with_both_numbers(body: object, words: str) -> None:
    with pytest.raises(Problem, match=words) as refused:
        parse_object(json.dumps(body).encode(), SETTINGS)
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_what_is_counted_is_what_is_read(encoding: str) -> None:
    """In another encoding nothing of it could be counted by its bytes."""
    with pytest.raises(Problem) as refused:
        parse_object(json.dumps({"prompt": "x"}).encode(encoding), SETTINGS)
    assert refused.value.code == "invalid_json"


def test_a_number_has_few_digits() -> None:
    with pytest.raises(Problem, match=r"at most 100 digits in a number, got 4000"):
        parse_object(b'{"prompt": [' + b"9" * 4000 + b"]}", SETTINGS)
