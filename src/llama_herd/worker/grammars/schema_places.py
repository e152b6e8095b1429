"""Places in JSON schemas: where schemas stand within one another, and how a place is told."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: The way to a value in a schema.
Path = tuple[str | int, ...]

_NAME = re.compile(r"\$?[A-Za-z0-9_]{1,64}")

#: Keywords whose value is a schema, those with a list of schemas, and those with schemas by name.
_ONE = ("additionalProperties", "additionalItems", "items")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


class SchemaProblem(ValueError):
    """Why a part of a schema cannot be followed. It quotes nothing of the schema but its place."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{told(path)} {problem}")


def told(path: Path) -> str:
    """A place for an error, with those names that look like names."""
    return ".".join(str(part) if _NAME.fullmatch(str(part)) else "?" for part in path) or "the schema"


def with_parts(schema: Mapping[str, Any], path: Path, change: Callable[[Any, Path], Any]) -> dict[str, Any]:
    """A copy of a schema in which the schemas that stand in it are changed."""
    found = dict(schema)
    for key, value in schema.items():
        way = (*path, key)
        if key in _LISTS and isinstance(value, list):
            found[key] = [change(one, (*way, number)) for number, one in enumerate(value)]
        elif key in _ONE:
            found[key] = change(value, way)
        elif key in _NAMED and isinstance(value, Mapping):
            found[key] = {name: change(one, (*way, name)) for name, one in value.items()}
    return found


def places(schema: Any) -> dict[Path, Any]:
    """This schema and all that stand in it, by their paths."""
    found = dict[Path, Any]()

    def note(one: Any, path: Path) -> Any:
        found[path] = one
        return with_parts(one, path, note) if isinstance(one, Mapping) else one

    note(schema, ())
    return found


def values(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """All values in a schema, with their paths."""
    yield path, value
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from values(one, (*path, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from values(one, (*path, number))
