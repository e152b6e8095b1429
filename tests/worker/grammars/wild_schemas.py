"""Random JSON schemas of every kind that forms take, most of them open, some that are refused."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from llama_herd.worker.grammars.formats import FORMATS

Schema = dict[str, Any]

NAMES = ("a", "ab", "role", "é😀", 'q"\\', "", "__proto__", "a/b", "~", "line\n", "\u0007", "k e y")
#: Patterns of names and texts.
PATTERNS = (
    "^a",
    "^a$",
    "^[a-c]+$",
    "b$",
    "^x-",
    "^(a|role)$",
    "",
    ".",
    "^.$",
    r"^\d{1,3}$",
    r"^\D\W?$",
    r"^\S+$",
    r"^\s$",
    r"^[^\s]{2}$",
    r"^[\w-]{1,4}$",
    r"^\u0061?[\u00e9\u{1f600}]{1,3}$",
    r"^[&&~~a]{1,2}$",
    r"^\/[^/]*$",
    "^(?:é|😀){1,3}$",
    r"\x41",
    r"^\cJ$",
    "role",
)
CONSTANTS: tuple[Any, ...] = (
    *(None, True, 0, -7, 1.5, -0.0, 1e-7, 1e300, 2**53, 2**53 + 1, "", "é😀", 'b"\\\n', "user", "\u0007"),
    *(123456789012345e5, [1, {}], {"a": None}, [], {"a": {"role": ["user"]}, "": 0}),
)
#: Numbers that bounds lie at.
EDGES = (
    *(
        0,
        1,
        -1,
        0.5,
        1.05,
        0.1,
        -0.1,
        9,
        10,
        99,
        100,
        1.5,
        123.456,
        1e-7,
        1e-20,
        1e15,
        1e17,
        1e18,
        1e19,
        1e300,
    ),
    *(2**31 - 1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1024, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), -1e300),
)


def wild_schema(rng: Random) -> Schema:
    """A schema, its definitions at its root."""
    schema = _schema(rng, 2)
    schema["$defs"] = {name: _schema(rng, 1) for name in ("x", "y")}
    return schema


def _schema(rng: Random, depth: int) -> Schema:
    kinds = (*_FLAT, *(_DEEP if depth > 0 else ()))
    found = rng.choice(kinds)(rng, depth)
    return dict(rng.sample([*found.items()], len(found)))  # llguidance reads keywords in their order


def _string(rng: Random, depth: int) -> Schema:
    low = rng.randrange(4)
    lengths = {"minLength": low, "maxLength": low + rng.randrange(4)}
    found = {"pattern": rng.choice(PATTERNS)} if rng.random() < 0.6 else {}
    some = {key: value for key, value in lengths.items() if rng.random() < 0.4}
    return {**_some_type(rng, "string"), **found, **some}


def _format(rng: Random, depth: int) -> Schema:
    return {**_some_type(rng, "string"), "format": rng.choice([*FORMATS])}


def wild_number(rng: Random, depth: int = 0) -> Schema:
    """A schema of numbers with bounds at the edges."""
    edge = rng.choice(EDGES)
    near = rng.choice((0, 0.05, 0.5, 1, 3, 1000, 1e-9, abs(edge)))
    lower, upper = rng.choice(("minimum", "exclusiveMinimum")), rng.choice(("maximum", "exclusiveMaximum"))
    bounds = {lower: edge, upper: edge + near} if rng.random() < 0.5 else {lower: edge - near, upper: edge}
    found = {key: value for key, value in bounds.items() if rng.random() < 0.8}
    if rng.random() < 0.2:
        found["multipleOf"] = rng.choice((1, 3, 0.5, 0.1, 0.01, 7.5, 1000))
    return {**_some_type(rng, rng.choice(("number", "integer"))), **found}


def _some_type(rng: Random, kind: str) -> Schema:
    return rng.choice(({"type": kind}, {"type": kind}, {"type": [kind, "null"]}, {}))


def _simple(rng: Random, depth: int) -> Schema:
    return {"type": rng.choice([["integer", "null"], "boolean", "null", "integer", "string"])}


def _enum(rng: Random, depth: int) -> Schema:
    values = {json.dumps(one): one for one in rng.sample(CONSTANTS, rng.randint(1, 4))}
    return {"enum": [*values.values()], **(_some_type(rng, "string") if rng.random() < 0.2 else {})}


def _const(rng: Random, depth: int) -> Schema:
    return {"const": rng.choice(CONSTANTS)}


def _reference(rng: Random, depth: int) -> Schema:
    beside = {"type": rng.choice(("object", "string", "number"))} if rng.random() < 0.2 else {}
    return {"$ref": rng.choice(("#/$defs/x", "#/$defs/y", "#")), **beside}


def _array(rng: Random, depth: int) -> Schema:
    found = dict[str, Any]()
    if rng.random() < 0.7:
        found["items"] = _schema(rng, depth - 1) if rng.random() < 0.8 else False
    if rng.random() < 0.3:
        found["prefixItems"] = [_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
    low = rng.randrange(3)
    counts = {"minItems": low, "maxItems": low + rng.randrange(3)}
    return {**_some_type(rng, "array"), **found, **{k: n for k, n in counts.items() if rng.random() < 0.4}}


def _different(rng: Random, depth: int) -> Schema:
    few = rng.sample((None, True, 0, 1, "", "é😀", "user"), rng.randint(1, 4))
    return {**_some_type(rng, "array"), "uniqueItems": rng.random() < 0.9, "items": {"enum": few}}


def _object(rng: Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randrange(4))
    found: Schema = {"properties": {name: _schema(rng, depth - 1) for name in names}}
    if rng.random() < 0.5:
        found["required"] = [name for name in rng.sample(NAMES, 2) if rng.random() < 0.3]
        found["required"] += [name for name in names if name not in found["required"] and rng.random() < 0.5]
    if rng.random() < 0.4:
        patterns = rng.sample(PATTERNS, rng.choice((1, 1, 2)))
        found["patternProperties"] = {one: _schema(rng, depth - 1) for one in patterns}
    if rng.random() < 0.5:
        found["additionalProperties"] = rng.choice((False, False, True, _schema(rng, depth - 1)))
    if rng.random() < 0.1:
        found[rng.choice(("minProperties", "maxProperties"))] = rng.randrange(3)
    return {**_some_type(rng, "object"), **found}


def _record(rng: Random, depth: int) -> Schema:
    """An object by what its names are."""
    low = rng.randrange(3)
    names = rng.choice(
        (
            {"minLength": low, "maxLength": low + rng.randrange(3)},
            {"minLength": low},
            {"format": rng.choice([*FORMATS, "password"])},
            {"pattern": rng.choice(PATTERNS)},
            {"const": rng.choice(NAMES)},
            {"enum": rng.sample(NAMES, 2)},
        )
    )
    required = [rng.choice(NAMES)] if rng.random() < 0.3 else []
    return {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": _schema(rng, depth - 1),
        "required": required,
    }


def _any_of(rng: Random, depth: int) -> Schema:
    return {"anyOf": [_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _one_of(rng: Random, depth: int) -> Schema:
    if rng.random() < 0.3:
        return {"oneOf": [_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]}
    if rng.random() < 0.3:
        by = {"discriminator": {"propertyName": rng.choice(NAMES)}}
        return {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}], **(by if rng.random() < 0.5 else {})}
    kinds = rng.sample(("string", "boolean", "null", "object"), 2)
    return {"oneOf": [{"type": kinds[0]}, {"type": kinds[1]}, {"enum": [7, 8]}]}


def _all_of(rng: Random, depth: int) -> Schema:
    kind = rng.choice((_object, _object, wild_number, _string, _array, _any_of))
    return {"allOf": [kind(rng, depth - 1) for _ in range(2)]}


_Kind = Callable[[Random, int], Schema]
_FLAT: tuple[_Kind, ...] = (_string, _format, wild_number, wild_number, _simple, _enum, _const, _reference)
_DEEP: tuple[_Kind, ...] = (_array, _different, _object, _object, _object, _record, _any_of, _one_of, _all_of)
