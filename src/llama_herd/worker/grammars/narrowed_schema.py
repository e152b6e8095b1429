"""Schemas as llguidance follows them: narrowed where it would let more through than they say, or refused."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from types import UnionType
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher, LLTokenizer

from llama_herd.worker.grammars.bounds import BOUNDS, check_divisors, is_held, narrowed_bounds
from llama_herd.worker.grammars.formats import FORMATS, format_patterns, is_annotation
from llama_herd.worker.grammars.patterns import as_llguidance
from llama_herd.worker.grammars.schema_places import Path, SchemaProblem, places, values, with_parts

#: A vocabulary of single bytes: what a grammar takes over it, it takes over a model's, too.
BYTES = LLTokenizer("byte")

#: With little white space, since a model may draw it without end, and as schemas say, whatever a schema's own
#: `x-guidance` wants. Each text has one spelling: an escape of another character would spell a name that a
#: schema declares as one that it does not.
JSON_OPTIONS: Any = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n[ \t]{0,24}",
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"',
}

#: A reference to a definition at the root.
_DEFINITION = re.compile(r"#/(\$defs|definitions)/(\w+)")
#: Keywords whose schemas hold at the place of the schema that they stand in.
_IN_PLACE = ("allOf", "anyOf", "oneOf")


#: With codes of the characters that have no short escape.
VALUE_OPTIONS: Any = {**JSON_OPTIONS, "json_allowed_escapes": 'nrbtf\\"u'}


def json_grammar(schema: Any, options: Any = JSON_OPTIONS) -> str:
    """The grammar of a schema that llguidance holds as it is."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)


def check_references(found: Mapping[Path, Any]) -> None:
    """Raise SchemaProblem if a reference cannot be followed, among all places of a schema."""
    known = _Known(found)
    targets = {
        path: known.targets(one["$ref"], path)
        for path, one in found.items()
        if isinstance(one, Mapping) and isinstance(one.get("$ref"), str)
    }
    ways = {path: [*targets.get(path, ())] for path in found}
    for path in found:
        if len(path) > 1 and path[-2] in _IN_PLACE and isinstance(path[-1], int):
            ways[path[:-2]].append(path)
    try:
        TopologicalSorter(ways).prepare()
    except CycleError as error:
        steps = pairwise(error.args[1])  # backwards: each place behind where it leads
        path = next(path for target, path in steps if target in targets.get(path, ()))
        raise SchemaProblem((*path, "$ref"), "is not supported: it leads back to itself") from None


class _Known:
    """The places that references may name."""

    def __init__(self, found: Mapping[Path, Any]) -> None:
        self._by_steps = {tuple(map(str, path)): path for path in found}
        self._by_name = dict[str, list[Path]]()
        for path, one in found.items():
            for name in _names(one) if isinstance(one, Mapping) else ():
                self._by_name.setdefault(name, []).append(path)

    def targets(self, reference: str, path: Path) -> list[Path]:
        """Where a reference may lead; none where llguidance has its own complaint."""
        uri, _, fragment = unquote(reference).partition("#")
        if not fragment.startswith("/"):
            return self._by_name.get(_name(uri, fragment), []) if uri or fragment else [()]
        steps = tuple(one.replace("~1", "/").replace("~0", "~") for one in fragment[1:].split("/"))
        if steps in self._by_steps:
            return [self._by_steps[steps]]
        ends = [way for known, way in self._by_steps.items() if known[-len(steps) :] == steps]
        if not ends:
            raise SchemaProblem((*path, "$ref"), "is not supported: it must name a schema, as one in $defs")
        return ends


def _names(schema: Mapping[str, Any]) -> Iterator[str]:
    """What a schema may be named by, its place aside."""
    for key in ("$id", "id"):
        if isinstance(schema.get(key), str):
            uri, _, fragment = schema[key].partition("#")
            yield _name(uri, fragment)
    if isinstance(schema.get("$anchor"), str):
        yield _name("", schema["$anchor"])


def _name(uri: str, fragment: str) -> str:
    """A name as it is compared: where another one is meant, a reference is rather followed too often."""
    return f"#{fragment}" if fragment else uri.rpartition("/")[2]


def narrowed_names(schema: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What takes the place of a schema's keywords of names."""
    given = schema.get("patternProperties")
    if not isinstance(given, Mapping) or not given:
        return {}
    patterns = _read(given, (*path, "patternProperties"))
    properties = dict(schema.get("properties", {}))
    names = list(dict.fromkeys([*properties, *schema.get("required", ())]))
    for pattern, one in list(patterns.items()):
        if not _leaves_names(names, {pattern: True}, others=False):
            del patterns[pattern]
            for name in names:
                if _matches(pattern, name):
                    properties[name] = {"allOf": [properties.get(name, True), one]}
    others = schema.get("additionalProperties", True)
    if others is not False and not _leaves_names(names, dict.fromkeys(patterns, False), others=True):
        others = False
    return {"properties": properties, "patternProperties": patterns, "additionalProperties": others}


def _with_own_names(schema: Any, root: Mapping[str, Any]) -> Any:
    """A schema whose `propertyNames` say themselves what a definition says, as pydantic names an Enum."""
    if not isinstance(schema, Mapping):
        return schema
    found = with_parts(schema, (), lambda one, _: _with_own_names(one, root))
    match found.get("propertyNames"):
        case {"$ref": str(reference), **more} if not more and (way := _DEFINITION.fullmatch(reference)):
            definitions = root.get(way[1])
            one = definitions.get(way[2]) if isinstance(definitions, Mapping) else None
            if isinstance(one, Mapping):
                found["propertyNames"] = dict(one)
    return found


def _named(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without its `propertyNames`, where other keywords say the same; else as it is."""
    if "propertyNames" not in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    names = schema["propertyNames"]
    asked = {} if names is True else names
    if isinstance(asked, Mapping):
        asked = {key: value for key, value in asked.items() if not _is_said_of_all_names(key, value)}
    if asked == {}:
        return rest
    if schema.get("properties") or schema.get("patternProperties"):
        return schema
    others = schema.get("additionalProperties", True)
    match asked:
        case {"enum": list(given), **more} if not more:
            properties = {name: others for name in given if isinstance(name, str)}
            return {**rest, "properties": properties, "additionalProperties": False}
        case {"const": str(name), **more} if not more:
            return {**rest, "properties": {name: others}, "additionalProperties": False}
        case Mapping() if (pattern := _pattern_of_names(asked)) is not None:
            return {**rest, "patternProperties": {pattern: others}, "additionalProperties": False}
    return schema


def _is_said_of_all_names(key: str, value: object) -> bool:
    """Whether a keyword of names says no more than that they are texts."""
    if key == "format":
        return isinstance(value, str) and is_annotation(value)
    return key in ("title", "description") or (key, value) == ("type", "string")


def _pattern_of_names(asked: Mapping[str, Any]) -> str | None:
    """The one pattern that says the same of names; None where there is none."""
    match asked:
        case {"pattern": str(pattern), **more} if not more:
            return pattern
        case {"format": str(name), **more} if not more and len(patterns := FORMATS.get(name, ())) == 1:
            return f"^(?:{patterns[0]})$"
    if asked.keys() <= {"minLength", "maxLength"} and all(type(one) is int for one in asked.values()):
        return f"^[^]{{{asked.get('minLength', 0)},{asked.get('maxLength', '')}}}$"
    return None


def _read(given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The patterns as llguidance reads them, each once."""
    found = dict[str, Any]()
    for pattern, one in given.items():
        try:
            text = as_llguidance(pattern, is_exact=True)
        except ValueError as error:
            raise SchemaProblem((*path, pattern), str(error)) from None
        found[text] = {"allOf": [found[text], one]} if text in found else one
    return found


def _leaves_names(taken: Iterable[str], patterns: Mapping[str, bool], *, others: bool) -> bool:
    """Whether there are names beside the taken ones."""
    properties = dict.fromkeys(taken, False)
    schema = {"properties": properties, "patternProperties": patterns, "additionalProperties": others}
    matcher = _matcher(schema)
    if matcher.is_error() or not matcher.consume_token(ord("{")):
        return True  # the schema's own complaint tells more
    mask = matcher.compute_bitmask()
    return bool(mask[ord('"') // 8] >> ord('"') % 8 & 1)


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name: then it cannot have a value other than the pattern's."""
    return _matcher(
        {"properties": {name: {"const": 1}}, "required": [name], "patternProperties": {pattern: {"const": 2}}}
    ).is_error()


def _matcher(schema: Mapping[str, Any]) -> LLMatcher:
    return LLMatcher(BYTES, json_grammar({"type": "object", **schema}), log_level=0)


#: Characters that no text in an output holds, since JSON writes them by their codes or not at all.
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
#: Keywords whose values are read here before llguidance reads them.
_KINDS: Mapping[str, tuple[type | UnionType, str]] = {
    "allOf": (list, "a list"),
    "format": (str, "a text"),
    "minProperties": (int | float, "a number"),
    "properties": (Mapping, "an object"),
    "required": (list, "a list of texts"),
    "type": (str | list, "a text or a list"),
}


def narrowed_schema(schema: Any) -> Any:
    """A schema whose every word llguidance holds: what follows it follows the given one, too.

    Narrowed are bounds of numbers, classes of characters in patterns, formats, and patterns that match
    declared names only. Raises SchemaProblem, with the place, for what cannot be narrowed.
    """
    known = places(schema)
    found = {path: one for path, one in known.items() if isinstance(one, Mapping)}
    for path, one in found.items():
        _check(one, path)
    check_references(known)
    divisors = [(*path, "multipleOf") for path, one in found.items() if "multipleOf" in one]
    check_divisors((path, found[path[:-1]]["multipleOf"]) for path in divisors)
    return _narrowed(_with_own_names(schema, schema), ())


def _check(schema: Mapping[str, Any], path: Path) -> None:
    """Raise SchemaProblem for what cannot be narrowed."""
    if str(schema.get("$schema", "")).startswith("http://json-schema.org/draft-03/"):
        raise SchemaProblem((*path, "$schema"), "is not supported: draft 3 has other keywords")
    for key, (kind, told) in _KINDS.items():
        if key in schema and not isinstance(schema[key], kind):
            raise SchemaProblem((*path, key), f"must be {told}")
    if not all(isinstance(one, str) for one in schema.get("required", ())):
        raise SchemaProblem((*path, "required"), "must be a list of texts")
    if schema.get("minProperties", 0) > max(1, len(schema.get("required", ()))) and (
        schema.get("additionalProperties") is not False or schema.get("patternProperties")
    ):
        fix = "where undeclared names may repeat. Fix: additionalProperties: false"
        raise SchemaProblem((*path, "minProperties"), f"is not supported {fix}")
    for key in schema.keys() & {"const", "enum"}:
        for way, value in values(schema[key], (*path, key)):
            _check_constant(value, way)


def _check_constant(value: object, path: Path) -> None:
    if isinstance(value, str) and _UNWRITABLE.search(value):
        raise SchemaProblem(path, "is not supported: it has a control character without a short escape")
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_held(value):
        raise SchemaProblem(path, "is not supported: it has too many digits")


def _narrowed(schema: Any, path: Path) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = with_parts(schema, path, _narrowed)
    bounds = narrowed_bounds(schema, path)
    found = {key: value for key, value in found.items() if key not in BOUNDS} | bounds
    found = _named(found)
    found |= narrowed_names(found, path)
    if isinstance(schema.get("pattern"), str):
        try:
            found["pattern"] = as_llguidance(schema["pattern"])
        except ValueError as error:
            raise SchemaProblem((*path, "pattern"), str(error)) from None
    if "format" in schema:
        patterns = _patterns(found.pop("format"), schema, path)
        if patterns:
            found["allOf"] = [*found.get("allOf", ()), *({"pattern": f"^(?:{one})$"} for one in patterns)]
    return found


def _patterns(value: object, schema: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The patterns of a format; none where nothing is a text."""
    kinds = schema.get("type", "string")
    if kinds != "string" and "string" not in kinds:
        return ()
    try:
        return format_patterns(str(value))
    except ValueError as error:
        raise SchemaProblem((*path, "format"), str(error)) from None
