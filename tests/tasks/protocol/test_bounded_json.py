"""JSON is counted piece by piece as Python sees it, and nothing of what is too large is parsed."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from llama_herd.tasks.protocol import bounded_json
from llama_herd.tasks.protocol.bounded_json import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    JsonSize,
    JsonTooLarge,
    parse_bounded,
)

TEXTS = ("", "a", '"', "\\", '\\"', "[{,:", "\u00e9", "\n", '"},{"', "\\\\\\", "\U0001f600")


def parts_of(value: Any) -> Iterator[Any]:
    """The value, and all within it."""
    yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts_of(part)


def counted(value: Any) -> tuple[int, int]:
    """Containers and values, as Python sees them."""
    found = [part for part in parts_of(value) if isinstance(part, dict | list)]
    names = sum(len(part) for part in found if isinstance(part, dict))
    return len(found), names + sum(max(0, len(part) - 1) for part in found)


def drawn(chance: random.Random, depth: int = 0) -> Any:
    match chance.randrange(6 if depth < 4 else 3):
        case 0:
            return "".join(chance.choices(TEXTS, k=chance.randrange(5)))
        case 1:
            return chance.choice((1, -2.5, True, None))
        case 2:
            return chance.choice(TEXTS)
        case 3:
            return [drawn(chance, depth + 1) for _ in range(chance.randrange(5))]
        case _:
            names = {"".join(chance.choices(TEXTS, k=2)) for _ in range(chance.randrange(5))}
            return {name: drawn(chance, depth + 1) for name in names}


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1 << 16])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_size_is_that_of_what_is_made(
    piece_bytes: int, is_ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the text is cut into pieces."""
    monkeypatch.setattr(bounded_json, "_PIECE_BYTES", piece_bytes)
    for seed in range(40):
        value = drawn(random.Random(seed))
        size = JsonSize(10_000)
        assert parse_bounded(json.dumps(value, ensure_ascii=is_ascii).encode(), size) == value
        assert (size.containers, size.values) == counted(value)


def test_the_bounds_are_those_that_are_told() -> None:
    within: list[Any] = [[]] * (MAX_CONTAINERS - 1)
    deep = json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for value in (within, deep, [0] * 101, [""] * 101, dict.fromkeys(map(str, range(50)))):
        parse_bounded(json.dumps(value).encode(), JsonSize(10_000 if value is within else 100))
    for value in ([*within, []], [deep], [0] * 102, {str(number): 0 for number in range(52)}):
        with pytest.raises(JsonTooLarge, match=r"must (have|be) at most .*, got at least [0-9]+"):
            parse_bounded(json.dumps(value).encode(), JsonSize(10_000 if len(value) > 8000 else 100))


@pytest.mark.parametrize("mark", [b"[", b"{", b",", b":", b'"', b'{"":', b"[],", b'"",'])
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1 << 10])
def test_what_is_too_large_is_not_looked_at_to_its_end(
    mark: bytes, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_json, "_PIECE_BYTES", piece_bytes)
    num_counted: list[int] = []
    count = JsonSize._count

    def note(size: JsonSize, outside: bytes, num_quotes: int) -> None:
        num_counted.append(1)
        count(size, outside, num_quotes)

    monkeypatch.setattr(JsonSize, "_count", note)
    with pytest.raises(JsonTooLarge):
        JsonSize(100).add(b"[" + mark * 40_000)
    assert len(num_counted) * piece_bytes < 20_000
