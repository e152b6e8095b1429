"""Random JSON schemas, small enough that answers end."""

from collections.abc import Callable
from random import Random
from typing import Any

Schema = dict[str, Any]

NAMES = ("name", "size", "é😀", 'q"\\', "a b", "tags")
CONSTANTS = (None, True, 0, -7, 1.5, "", "é😀", 'b"\\\n', [1, {}], {"a": None})


def random_schema(rng: Random, depth: int = 3) -> Schema:
    kinds = (*_FLAT, *((*_DEEP, *_DEEP) if depth else ()))
    return rng.choice(kinds)(rng, depth)


def _string(rng: Random, depth: int) -> Schema:
    lengths = sorted(rng.randrange(8) for _ in range(2))
    return {"type": "string", "minLength": lengths[0], "maxLength": lengths[1]}


def _pattern(rng: Random, depth: int) -> Schema:
    return {"type": "string", "pattern": rng.choice([r"^[a-c]{1,4}$", r"^\d{2}-\d{2}$", "^(é|😀){1,3}$"])}


def _integer(rng: Random, depth: int) -> Schema:
    bounds = sorted(rng.randrange(-200, 200) for _ in range(2))
    return {"type": "integer", "minimum": bounds[0], "maximum": bounds[1]}


def _simple(rng: Random, depth: int) -> Schema:
    return {"type": rng.choice([["integer", "null"], "boolean", "null"])}


def _enum(rng: Random, depth: int) -> Schema:
    return {"enum": rng.sample(CONSTANTS, rng.randint(1, 4))}


def _const(rng: Random, depth: int) -> Schema:
    return {"const": rng.choice(CONSTANTS)}


def _array(rng: Random, depth: int) -> Schema:
    counts = sorted(rng.randrange(4) for _ in range(2))
    items = random_schema(rng, depth - 1)
    return {"type": "array", "items": items, "minItems": counts[0], "maxItems": counts[1]}


def _object(rng: Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randrange(4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _any_of(rng: Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


_FLAT: tuple[Callable[[Random, int], Schema], ...] = (_string, _pattern, _integer, _simple, _enum, _const)
_DEEP: tuple[Callable[[Random, int], Schema], ...] = (_array, _object, _any_of)
