"""What can be wrong with a JSON file: any value or key of it, its nesting, or its text."""

import json
import random
from copy import deepcopy
from typing import Any

VALUES: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3.5,
    1e308,
    2**31,
    2**63,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
    "x" * 5_000,
    "\ud800",
    "\0",
    "../../etc",
    "F8_E4M3",
    "BF16",
    [],
    [[]],
    {},
    {"": {}},
    ["a", 1, None],
    [0, 0],
    {"type": "Sequence"},
    {"rope_type": "yarn", "factor": 0},
)
TEXTS = ("", "null", "[]", "{", "[" * 5_000, '{"a":' * 5_000, "\ufeff{}", "{}" * 2, '"', "9" * 5_000)


def damaged_json(text: str, rng: random.Random) -> bytes:
    """The text with one to three things wrong."""
    if rng.random() < 0.1:
        return _damaged_text(text.encode(), rng)
    root = [json.loads(text)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change_one(root, rng)
    return json.dumps(root[0]).encode()


def _damaged_text(text: bytes, rng: random.Random) -> bytes:
    way = rng.randrange(4)
    if way == 0:
        return rng.choice(TEXTS).encode()
    if way == 1:
        return text[: rng.randrange(len(text) + 1)]
    at = rng.randrange(len(text))
    if way == 2:
        return text[:at] + rng.randbytes(rng.randint(1, 4)) + text[at:]
    return text[:at] + bytes(rng.choices(b'0123456789[]{},:"\\e.-', k=1)) + text[at + 1 :]


def _change_one(root: list[Any], rng: random.Random) -> None:
    """One value somewhere becomes another, goes away, or comes under another key."""
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.85:
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    way = rng.randrange(4)
    if way == 0 and holder is not root:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[rng.choice((*map(str, holder), "", "x", str(key) * 99))] = holder.pop(key)
    elif way == 2:
        holder[key] = deepcopy(_near(holder[key], rng))
    else:
        holder[key] = deepcopy(rng.choice(VALUES))


def _near(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return rng.choice(
            (value + 1, value - 1, value * 2, -value, value * 3 // 2, value * 2**40, str(value))
        )
    if isinstance(value, str):
        return rng.choice((value[:-1], value + "x", value * 3, value.upper(), [value]))
    if isinstance(value, list):
        return rng.choice((value * 2, value[1:], value[::-1], [value], {"0": value}))
    return rng.choice(({"x": value}, [value], list(value), dict(list(value.items())[1:])))
