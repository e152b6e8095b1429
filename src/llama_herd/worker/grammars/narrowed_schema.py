"""Schemas as llguidance follows them: narrowed where it would let more through than they say, or refused."""

import re
from collections.abc import Mapping
from types import UnionType
from typing import Any

from llama_herd.worker.grammars.alternatives import Alternatives
from llama_herd.worker.grammars.bounds import BOUNDS, check_divisors, is_held, narrowed_bounds
from llama_herd.worker.grammars.formats import ENCODINGS, format_patterns
from llama_herd.worker.grammars.listed_values import without_unique_items
from llama_herd.worker.grammars.look_ahead import without_look_ahead
from llama_herd.worker.grammars.names import narrowed_names, with_own_names, without_property_names
from llama_herd.worker.grammars.patterns import as_llguidance, is_within
from llama_herd.worker.grammars.references import References
from llama_herd.worker.grammars.schema_places import Path, SchemaProblem, places, values, with_parts

#: Keywords that say something of a value, or name a schema. Any other is left out: beside a reference
#: llguidance would take it for a schema of its own, and not follow one that comes back to itself.
KEYWORDS = frozenset(
    {
        *("$anchor", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef"),
        *("$ref", "$schema", "$vocabulary", "definitions", "id"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "enum", "type"),
        *("additionalItems", "contains", "items", "maxContains", "maxItems", "minContains", "minItems"),
        *("prefixItems", "unevaluatedItems", "uniqueItems"),
        *("additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "maxProperties"),
        *("minProperties", "patternProperties", "properties", "propertyNames", "required"),
        *("unevaluatedProperties", "format", "maxLength", "minLength", "pattern"),
        *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"),
    }
)
#: Of these, those that llguidance takes for schemas of their own, and what stands between two of them for
#: one, too: it would not read `additionalItems` together with `items`.
_APPLIED = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "oneOf"})
#: Drafts as llguidance is told them. Other spellings of them, and what is none, mean the newest.
_DRAFTS = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?|https://json-schema\.org/draft/20(19-09|20-12)/schema#?"
)
_NEWEST = re.compile(
    r"https?://(json-schema\.org/(draft[-/][^/]+/)?schema|spec\.openapis\.org/oas/3\.[12]/dialect/.+)#?"
)
#: Characters that no text in an output holds, since JSON writes them by their codes or not at all.
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
#: Keywords whose values are read here before llguidance reads them.
_KINDS: Mapping[str, tuple[type | UnionType, str]] = {
    "allOf": (list, "a list"),
    "format": (str, "a text"),
    "pattern": (str, "a text"),
    "properties": (Mapping, "an object"),
    "required": (list, "a list of texts"),
    "type": (str | list, "a text or a list"),
}
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def narrowed_schema(schema: Any) -> Any:
    """A schema whose every word llguidance holds: what follows it follows the given one, too.

    Narrowed are bounds of numbers, classes of characters in patterns, formats, and patterns that match
    declared names only. Raises SchemaProblem, with the place, for what cannot be narrowed.
    """
    known = places(schema)
    for path, one in known.items():
        if not isinstance(one, Mapping | bool):
            raise SchemaProblem(path, "must be an object, true or false")
    found = {path: one for path, one in known.items() if isinstance(one, Mapping)}
    for path, one in found.items():
        _check(one, path)
    references = References(known)
    references.check()
    divisors = [(*path, "multipleOf") for path, one in found.items() if "multipleOf" in one]
    check_divisors((path, found[path[:-1]]["multipleOf"]) for path in divisors)
    narrowed = _narrowed(with_own_names(Alternatives(references).as_any_of(schema), schema), ())
    if narrowed is False:
        raise SchemaProblem((), "lets nothing through")
    return {} if narrowed is True else narrowed


def _check(schema: Mapping[str, Any], path: Path) -> None:
    """Raise SchemaProblem for what cannot be narrowed."""
    draft = str(schema.get("$schema", "http://json-schema.org/schema"))
    if "draft-03" in draft or not _NEWEST.fullmatch(draft):
        raise SchemaProblem((*path, "$schema"), "must be a draft of JSON Schema from 4 on. Fix: leave it out")
    for key, (kind, told) in _KINDS.items():
        if key in schema and not isinstance(schema[key], kind):
            raise SchemaProblem((*path, key), f"must be {told}")
    if not all(isinstance(one, str) for one in schema.get("required", ())):
        raise SchemaProblem((*path, "required"), "must be a list of texts")
    kinds = schema.get("type", [])
    if not all(one in _TYPES for one in ([kinds] if isinstance(kinds, str) else kinds)):
        raise SchemaProblem((*path, "type"), f"must be one or a list of {', '.join(_TYPES)}")
    for key in _COUNTS:
        if key in schema and not _is_count(schema[key]):
            raise SchemaProblem((*path, key), "must be a whole number that is not negative")
    if schema.get("minProperties", 0) > max(1, len(schema.get("required", ()))) and (
        schema.get("additionalProperties") is not False or schema.get("patternProperties")
    ):
        fix = "where undeclared names may repeat. Fix: additionalProperties: false"
        raise SchemaProblem((*path, "minProperties"), f"is not supported {fix}")
    for key in schema.keys() & {"const", "enum"}:
        for way, value in values(schema[key], (*path, key)):
            _check_constant(value, way)


def _is_count(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value >= 0 and value % 1 == 0  # type: ignore[operator]


def _check_constant(value: object, path: Path) -> None:
    if isinstance(value, str) and _UNWRITABLE.search(value):
        raise SchemaProblem(path, "is not supported: it has a control character without a short escape")
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_held(value):
        raise SchemaProblem(path, "is not supported: it has too many digits")


def _narrowed(schema: Any, path: Path) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("not") == {} or schema.get("not") is True:  # as zod writes what is never there
        return False
    found = with_parts(schema, path, _narrowed)
    found |= {key: int(found[key]) for key in _COUNTS if key in found}
    if "$schema" in found and not _DRAFTS.fullmatch(found["$schema"]):
        del found["$schema"]
    bounds = narrowed_bounds(schema, path)
    found = {key: value for key, value in found.items() if key not in BOUNDS} | bounds
    found = without_unique_items(without_property_names(found))
    found |= narrowed_names(found, path)
    patterns = _patterns(schema, path)
    found = {key: value for key, value in found.items() if key not in ("format", "pattern")}
    if patterns:
        found["pattern"], *more = patterns
        found["allOf"] = [*found.get("allOf", ()), *({"pattern": one} for one in more)]
    return _in_order(found)


def _patterns(schema: Mapping[str, Any], path: Path) -> list[str]:
    """The patterns of a schema's texts; none where nothing is a text."""
    if "string" not in schema.get("type", "string"):  # in a list, or as the one
        return []
    key, encoding = "pattern", schema.get("contentEncoding")
    try:
        found = without_look_ahead(schema[key]) if key in schema else []
        found = [as_llguidance(one) for one in found]
        key = "format"
        whole = [*(format_patterns(schema[key]) if key in schema else ()), *ENCODINGS.get(str(encoding), ())]
    except ValueError as error:
        raise SchemaProblem((*path, key), str(error)) from None
    # What a format says anyway is left out: llguidance gives up where there are many.
    found = [one for one in found if not any(is_within(text, one) for text in whole)]
    return [*found, *(f"^(?:{one})$" for one in whole)]


def _in_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a schema, what belongs together side by side, in an order that keeps that of names."""
    keys = [key for key in schema if key in KEYWORDS]
    applied = [key for key in keys if key in _APPLIED]
    own = [key for key in keys if key not in _APPLIED]
    is_behind = "properties" not in own or not applied or keys.index("properties") < keys.index(applied[0])
    return {key: schema[key] for key in (own + applied if is_behind else applied + own)}
