"""A short value that follows a JSON schema."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from math import inf
from typing import Any

from llama_herd.errors import BadInput
from llama_herd.testing.matching_text import text_matching

#: What a text of a known format may look like.
FORMATS = {
    "byte": "YQ==",
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
    **{f"uuid{version}": f"00000000-0000-{version}000-8000-000000000000" for version in range(1, 9)},
}

#: How often a reference may stand within what it refers to, at most. A short value needs none of that.
MOST_AGAIN = 2

_KINDS = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


#: Words that say what a value is not, or what else it needs.
_BEYOND = {
    *("not", "if", "contains", "propertyNames", "patternProperties", "dependentRequired"),
    *("dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
}

#: Python's types of what JSON knows.
_TYPES = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def instance_of(schema: Any) -> Any:
    """A short value that follows a schema. Raises BadInput, which names the place, if it finds none."""
    for most_again in range(MOST_AGAIN):
        with suppress(BadInput):
            return _Instances(schema, most_again).of(schema, "")
    return _Instances(schema, MOST_AGAIN).of(schema, "")


@dataclass(frozen=True)
class _Instances:
    """Values by parts of a schema. `within`: the references that such a part stands in."""

    root: Any
    most_again: int

    def of(self, schema: Any, place: str, within: tuple[str, ...] = ()) -> Any:
        schema, within = self._whole(schema, place, within)
        if "const" in schema or "enum" in schema:
            return _listed(schema, place)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._first_of(schema, word, place, within)
        match _kind(schema):
            case "object":
                return self._object(schema, place, within)
            case "array":
                return self._array(schema, place, within)
            case "string":
                return _text(schema, place)
            case "integer" | "number" as kind:
                return _number(schema, is_whole=kind == "integer", place=place)
            case "boolean":
                return True
        return None

    def _whole(
        self, schema: Any, place: str, within: tuple[str, ...]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """A schema with all that it refers to, and all that holds besides; and what its parts stand in."""
        if schema is False:
            raise BadInput(f"{place or 'schema'}: nothing follows it")
        whole = {} if schema is True else dict(schema)
        parts = [(part, within) for part in whole.pop("allOf", ())]
        if reference := whole.pop("$ref", None):
            if within.count(reference) > self.most_again:
                raise BadInput(f"{place or 'schema'}: names itself without an end")
            parts.append((self._found(reference, place), (*within, reference)))
        more: tuple[str, ...] = ()
        for part, around in parts:
            found, inside = self._whole(part, place, around)
            whole = _joined(found, whole, place)
            more += inside[len(within) :]
        if words := sorted(whole.keys() & _BEYOND):
            raise _beyond(place, words[0])
        return whole, within + more

    def _found(self, reference: str, place: str) -> Any:
        found = self.root
        for step in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise BadInput(f"{place or 'schema'}: {reference} is not in the schema")
            found = found[name]
        return found

    def _first_of(self, schema: dict[str, Any], word: str, place: str, within: tuple[str, ...]) -> Any:
        """By the first of several schemas by which there is a value."""
        others = {name: value for name, value in schema.items() if name != word}
        match schema.get("discriminator"):
            case {"propertyName": str(tag)}:
                others["required"] = [*schema.get("required", ()), tag]
        problem = BadInput(f"{place or 'schema'}: {word} is empty")
        for one in sorted(schema[word], key=_refers):  # what refers to others is longer, perhaps without end
            try:
                return self.of({"allOf": [one, others]}, place, within)
            except BadInput as error:
                problem = error
        raise problem

    def _object(self, schema: Mapping[str, Any], place: str, within: tuple[str, ...]) -> dict[str, Any]:
        fields = schema.get("properties", {})
        names = dict.fromkeys(schema.get("required", ()))
        others = (f"field_{number}" for number in count())
        spare = (name for name in chain(fields, others) if name not in names)
        while len(names) < schema.get("minProperties", 0):
            names[next(spare)] = None
        if len(names) > schema.get("maxProperties", inf):
            raise _beyond(place, "an object with too many fields")
        rest = schema.get("additionalProperties", True)
        ordered = [name for name in fields if name in names] + [name for name in names if name not in fields]
        return {
            name: self.of(fields.get(name, rest), f"{place}.{name}".lstrip("."), within) for name in ordered
        }

    def _array(self, schema: Mapping[str, Any], place: str, within: tuple[str, ...]) -> list[Any]:
        firsts = schema.get("prefixItems", [])
        least = schema.get("minItems", 0)
        if least > schema.get("maxItems", inf) or (schema.get("uniqueItems") and least > 1):
            raise _beyond(place, "a list of different values, or of none")
        schemas = [*firsts, *[schema.get("items", True)] * max(0, least - len(firsts))][:least]
        places = (f"{place}.{number}".lstrip(".") for number in range(len(schemas)))
        return [self.of(one, inner, within) for one, inner in zip(schemas, places, strict=True)]


def _refers(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "$ref" in schema


def _joined(first: Mapping[str, Any], second: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Two schemas that both hold. Raises BadInput where it is not plain what they say together."""
    joined = {**first, **second}
    for one, other in ((first, second), (second, first)):
        if one.get("additionalProperties", True) is not True and "properties" in other:
            raise _beyond(place, "additionalProperties beside other properties")
    for word in first.keys() & second.keys():
        value, other = first[word], second[word]
        if word in ("minimum", "minLength", "minItems", "minProperties", "exclusiveMinimum"):
            joined[word] = max(value, other)
        elif word in ("maximum", "maxLength", "maxItems", "maxProperties", "exclusiveMaximum"):
            joined[word] = min(value, other)
        elif word == "required":
            joined[word] = [*dict.fromkeys((*value, *other))]
        elif word == "properties":
            both = {name: {"allOf": [value[name], other[name]]} for name in value if name in other}
            joined[word] = {**value, **other, **both}
        elif value != other and word not in ("title", "description", "default", "examples", "$defs"):
            raise _beyond(place, f"{word} twice")
    return joined


def _beyond(place: str, what: str) -> BadInput:
    return BadInput(f"{place or 'schema'}: {what}: no answer is made of that. Fix: write the answer")


def _listed(schema: Mapping[str, Any], place: str) -> Any:
    """The first of the values that a schema lists; beside a type it has that."""
    if schema.keys() - {"const", "enum", "type", "title", "description", "default", "examples", "$defs"}:
        raise _beyond(place, "values, and more words")
    values = schema.get("enum", [schema.get("const")])
    if "const" in schema:
        values = [schema["const"]] if schema["const"] in values else []
    kinds = schema.get("type", list(_TYPES))
    for value in values:
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if isinstance(value, _TYPES[kind]) and (kind == "boolean") == isinstance(value, bool):
                return value
    raise _beyond(place, "no value")


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value, as the schema says or as its other words mean it."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    if kind:
        return str(next((one for one in kind if one != "null"), "null"))
    return next((kind for kind, words in _KINDS.items() if any(word in schema for word in words)), "object")


def _text(schema: Mapping[str, Any], place: str) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", inf)
    if "pattern" in schema:
        return text_matching(schema["pattern"], least, most)
    text = FORMATS.get(schema.get("format", ""), "").ljust(least, "a")
    if len(text) > most:
        raise _beyond(place, "a text that is too long")
    return text


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
        fits = not step or one % step == 0
        if above and below and fits and not (is_whole and one % 1):
            return one if one % 1 else int(one)
    raise BadInput(f"{place or 'schema'}: no number was found between its bounds")
