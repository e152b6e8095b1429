"""Names of objects: keywords that say something of them, in words that llguidance holds."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from llguidance import LLMatcher

from llama_herd.worker.grammars.formats import FORMATS, is_annotation
from llama_herd.worker.grammars.json_grammar import BYTES, json_grammar
from llama_herd.worker.grammars.listed_values import listed_values
from llama_herd.worker.grammars.patterns import as_llguidance, is_within
from llama_herd.worker.grammars.schema_places import Path, SchemaProblem, with_parts

#: A reference to a definition at the root.
_DEFINITION = re.compile(r"#/(\$defs|definitions)/(\w+)")
_LENGTHS = frozenset({"minLength", "maxLength"})
#: Keywords that say nothing of a name.
_NOTES = frozenset({"title", "description", "examples", "example", "default", "deprecated", "readOnly"})
#: A pattern that matches whole texts alone, told by its looks.
_WHOLE = re.compile(r"\^(?:[^|]*|\([^()]*\))(?<!\\)\$", re.DOTALL)
#: What llguidance says of a schema that lets nothing through.
_NOTHING = "Unsatisfiable schema"


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
    others = schema.get("additionalProperties", not _is_record(schema, path) or bool(names))
    if others is not False and not _leaves_names(names, dict.fromkeys(patterns, False), others=True):
        others = False
    return {"properties": properties, "patternProperties": patterns, "additionalProperties": others}


def _is_record(schema: Mapping[str, Any], path: Path) -> bool:
    """Whether a schema means whole objects, as pydantic's of a dict: what is joined with others does not."""
    return schema.get("type") == "object" and not {"allOf", "$defs", "definitions"} & {*path[-2:-1]}


def with_own_names(schema: Any, root: Mapping[str, Any]) -> Any:
    """A schema whose `propertyNames` and unique items say themselves what a definition says.

    So pydantic names an Enum.
    """
    if not isinstance(schema, Mapping):
        return schema
    found = with_parts(schema, (), lambda one, _: with_own_names(one, root))
    for key in ("propertyNames", "items") if schema.get("uniqueItems") is True else ("propertyNames",):
        match found.get(key):
            case {"$ref": str(reference), **more} if not more and (way := _DEFINITION.fullmatch(reference)):
                definitions = root.get(way[1])
                one = definitions.get(way[2]) if isinstance(definitions, Mapping) else None
                if isinstance(one, Mapping):
                    found[key] = dict(one)
    return found


def without_property_names(schema: dict[str, Any]) -> dict[str, Any]:
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
    if not isinstance(asked, Mapping):
        return schema
    given, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if (listed := listed_values(asked)) and not schema.get("patternProperties"):
        properties = {name: given.get(name, others) for name in listed if isinstance(name, str)}
        return {**rest, "properties": properties, "additionalProperties": False}
    if given:
        return schema
    if patterns := schema.get("patternProperties"):
        is_said = asked.keys() <= _LENGTHS and all(_says(one, asked) for one in patterns)
        return {**rest, "additionalProperties": False} if is_said else schema
    if (pattern := _pattern_of_names(asked)) is not None:
        return {**rest, "patternProperties": {pattern: others}, "additionalProperties": False}
    return schema


def _is_said_of_all_names(key: str, value: object) -> bool:
    """Whether a keyword of names says no more than that they are texts."""
    if key == "format":
        return isinstance(value, str) and is_annotation(value)
    return key in _NOTES or (key, value) == ("type", "string")


def _pattern_of_names(asked: Mapping[str, Any]) -> str | None:
    """The one pattern that says the same of names; None where there is none."""
    lengths = {key: asked[key] for key in asked if key in _LENGTHS}
    match {key: asked[key] for key in asked if key not in _LENGTHS}:
        case {"pattern": str(pattern), "format": str(name), **more} if not more and name in FORMATS:
            if not _WHOLE.fullmatch(pattern):
                return None
            patterns = [f"(?:{one})" for one in (pattern, *FORMATS[name])]
        case {"pattern": str(pattern), **more} if not more:
            return pattern if _says(pattern, lengths) else None
        case {"format": str(name), **more} if not more and name in FORMATS:
            patterns = [f"(?:{one})" for one in FORMATS[name]]
        case {**more} if not more and all(type(one) is int for one in lengths.values()):
            return f"^[^]{{{lengths.get('minLength', 0)},{lengths.get('maxLength', '')}}}$"
        case _:
            return None
    whole = [f"^{one}$" for one in patterns if all(is_within(one, other) for other in patterns)]
    return next((one for one in whole if _says(one, lengths)), None)


def _says(pattern: str, lengths: Mapping[str, Any]) -> bool:
    """Whether no text that a pattern matches is longer or shorter than these lengths."""
    for key, length in lengths.items():
        if type(length) is not int:
            return False
        beyond = {"maxLength": length - 1} if key == "minLength" else {"minLength": length + 1}
        try:
            schema = {"type": "string", "pattern": as_llguidance(pattern, is_exact=True), **beyond}
        except ValueError:  # its own complaint tells more
            return False
        if not LLMatcher.validate_grammar(json_grammar(schema)).startswith(_NOTHING):
            return False
    return True


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
