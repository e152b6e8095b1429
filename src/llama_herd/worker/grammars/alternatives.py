"""Alternatives of schemas by `oneOf`, which says that a value has one of them alone.

llguidance follows it where it sees that no value has two, and looks into no reference for that. Where it is
seen here, `anyOf` says the same, also of alternatives that come back to themselves.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

from llama_herd.worker.grammars.references import References
from llama_herd.worker.grammars.schema_places import Path, with_parts

_KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})


class Alternatives:
    """Reads `oneOf` in a schema whose references can be followed."""

    def __init__(self, references: References) -> None:
        self._references = references
        named = (one.get("discriminator") for one in references.found.values() if isinstance(one, Mapping))
        names = (one.get("propertyName") for one in named if isinstance(one, Mapping))
        self._tags = frozenset(one for one in names if isinstance(one, str))

    def as_any_of(self, schema: Any, path: Path = ()) -> Any:
        """A schema with `anyOf` for `oneOf` wherever no value has two alternatives.

        What a `discriminator` names is required, also where it has a default, as in pydantic's unions.
        """
        if not isinstance(schema, Mapping):
            return schema
        found = with_parts(schema, path, self.as_any_of)
        properties = schema.get("properties", {})
        tags = [name for name in properties if name in self._tags and _texts(properties[name])]
        if tags:
            found["required"] = list(dict.fromkeys([*schema.get("required", ()), *tags]))
        options = schema.get("oneOf")
        if isinstance(options, list) and "anyOf" not in schema:
            leaves = [list(self._leaves(one, (*path, "oneOf", at))) for at, one in enumerate(options)]
            pairs = (pair for two in combinations(leaves, 2) for pair in product(*two))
            if all(self._are_apart(*pair) for pair in pairs):
                found = {"anyOf" if key == "oneOf" else key: value for key, value in found.items()}
        return found

    def _leaves(self, schema: Any, path: Path) -> Iterator[Mapping[str, Any]]:
        """What a value of a schema has one of: all that references and alternatives lead to."""
        if not isinstance(schema, Mapping):
            yield {}
            return
        for key in ("oneOf", "anyOf"):
            if isinstance(schema.get(key), list):
                for at, one in enumerate(schema[key]):
                    yield from self._leaves(one, (*path, key, at))
                return
        if not isinstance(schema.get("$ref"), str):
            yield schema
            return
        for target in self._references.targets(schema["$ref"], path):
            yield from self._leaves(self._references.found[target], target)

    def _are_apart(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether it is seen that no value has both."""
        common = _kinds(one) & _kinds(other)
        if common - {"object"}:
            return False
        ours, theirs = one.get("properties", {}), other.get("properties", {})
        return not common or any(
            (texts := _texts(ours[name])) and (others := _texts(theirs[name])) and not texts & others
            for name in ours.keys() & theirs.keys()
            if name in self._tags or name in (*one.get("required", ()), *other.get("required", ()))
        )


def _kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given
    return _KINDS if names is None else frozenset("number" if one == "integer" else str(one) for one in names)


def _texts(schema: Any) -> frozenset[str]:
    """The texts of which a value has to be one; none where it may be another."""
    if not isinstance(schema, Mapping):
        return frozenset()
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        return frozenset()
    return frozenset(given)
