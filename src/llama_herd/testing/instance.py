"""A short value that follows a JSON schema."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llama_herd.errors import BadInput
from llama_herd.testing.matching_text import text_matching

#: What a text of a known format may look like.
FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}

#: Schemas that a value goes through, at most: one that names itself has no end.
MAX_DEPTH = 32

_KINDS = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def instance_of(schema: Any) -> Any:
    """A short value that follows a schema. Raises BadInput, which names the place, if it finds none."""
    return _Instances(schema).of(schema, "")


@dataclass(frozen=True)
class _Instances:
    root: Any

    def of(self, schema: Any, place: str, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise BadInput(f"{place or 'schema'}: names itself without an end")
        if schema is False:
            raise BadInput(f"{place or 'schema'}: nothing follows it")
        schema = self._whole({} if schema is True else schema, place, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._first_of(schema, word, place, depth)
        match _kind(schema):
            case "object":
                return self._object(schema, place, depth)
            case "array":
                return self._array(schema, place, depth)
            case "string":
                return _text(schema)
            case "integer" | "number" as kind:
                return _number(schema, is_whole=kind == "integer", place=place)
            case "boolean":
                return True
        return None

    def _whole(self, schema: Mapping[str, Any], place: str, depth: int) -> dict[str, Any]:
        """A schema with all that it refers to, and all that holds besides."""
        whole = dict(schema)
        parts = list(whole.pop("allOf", ()))
        if reference := whole.pop("$ref", None):
            parts.append(self._found(reference, place))
        for part in parts:
            if depth > MAX_DEPTH:
                raise BadInput(f"{place or 'schema'}: names itself without an end")
            part = {} if part is True else self._whole(part, place, depth + 1)
            whole = _joined(part, whole)
        return whole

    def _found(self, reference: str, place: str) -> Any:
        found = self.root
        for step in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise BadInput(f"{place or 'schema'}: {reference} is not in the schema")
            found = found[name]
        return found

    def _first_of(self, schema: dict[str, Any], word: str, place: str, depth: int) -> Any:
        """By the first of several schemas by which there is a value."""
        others = {name: value for name, value in schema.items() if name != word}
        problem = BadInput(f"{place or 'schema'}: {word} is empty")
        for one in schema[word]:
            try:
                return self.of({"allOf": [one, others]}, place, depth + 1)
            except BadInput as error:
                problem = error
        raise problem

    def _object(self, schema: Mapping[str, Any], place: str, depth: int) -> dict[str, Any]:
        fields = schema.get("properties", {})
        names = dict.fromkeys(schema.get("required", ()))
        spare = (name for name in (*fields, *_names()) if name not in names)
        while len(names) < schema.get("minProperties", 0):
            names[next(spare)] = None
        rest = schema.get("additionalProperties", True)
        ordered = [name for name in fields if name in names] + [name for name in names if name not in fields]
        return {
            name: self.of(fields.get(name, rest), f"{place}.{name}".lstrip("."), depth + 1)
            for name in ordered
        }

    def _array(self, schema: Mapping[str, Any], place: str, depth: int) -> list[Any]:
        firsts = schema.get("prefixItems", [])
        least = schema.get("minItems", 0)
        schemas = [*firsts, *[schema.get("items", True)] * max(0, least - len(firsts))][:least]
        places = (f"{place}.{number}".lstrip(".") for number in range(len(schemas)))
        return [self.of(one, inner, depth + 1) for one, inner in zip(schemas, places, strict=True)]


def _names() -> Iterator[str]:
    number = 0
    while True:
        yield f"field_{number}"
        number += 1


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two schemas that both hold."""
    joined = {**first, **second}
    for word, value in first.items():
        if word not in second:
            continue
        other = second[word]
        if word == "required":
            joined[word] = [*dict.fromkeys((*value, *other))]
        elif word == "properties":
            both = {name: {"allOf": [value[name], other[name]]} for name in value if name in other}
            joined[word] = {**value, **other, **both}
        elif word == "enum":
            joined[word] = [one for one in value if one in other]
        elif word in ("minimum", "minLength", "minItems", "minProperties", "exclusiveMinimum"):
            joined[word] = max(value, other)
        elif word in ("maximum", "maxLength", "maxItems", "exclusiveMaximum"):
            joined[word] = min(value, other)
    return joined


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value, as the schema says or as its other words mean it."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    if kind:
        return str(next((one for one in kind if one != "null"), "null"))
    return next((kind for kind, words in _KINDS.items() if any(word in schema for word in words)), "object")


def _text(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        return text_matching(schema["pattern"])
    text = FORMATS.get(schema.get("format", ""), "")
    least: int = schema.get("minLength", 0)
    return text.ljust(least, "a")


def _number(schema: Mapping[str, Any], *, is_whole: bool, place: str) -> float:
    """The number nearest to 0 within the bounds."""
    step = schema.get("multipleOf", 1 if is_whole else 0)
    low = max(schema.get("minimum", -1e300), schema.get("exclusiveMinimum", -1e300))
    high = min(schema.get("maximum", 1e300), schema.get("exclusiveMaximum", 1e300))
    nearest = min(max(0, low), high)
    tried = [nearest, (low + high) / 2, low + 1, high - 1]
    if step:
        tried = [step * (one // step + more) for one in tried for more in (0, 1)]
    for one in tried:
        above = one >= low and one > schema.get("exclusiveMinimum", -1e301)
        below = one <= high and one < schema.get("exclusiveMaximum", 1e301)
        if above and below:
            return int(one) if one == int(one) else one
    raise BadInput(f"{place or 'schema'}: no number was found between its bounds")
