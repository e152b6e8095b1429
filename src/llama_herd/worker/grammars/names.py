"""Names of properties by patterns, as llguidance follows them.

It lets a name begin that no text can end, where a pattern leaves no names but the declared ones, and ends
there. So such a pattern goes to the names that it matches.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from llama_herd.worker.grammars.json_options import json_grammar
from llama_herd.worker.grammars.patterns import as_llguidance
from llama_herd.worker.grammars.schema_places import Path, SchemaProblem


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
    matcher = _matcher(
        {"properties": properties, "patternProperties": patterns, "additionalProperties": others}
    )
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
    return LLMatcher(_bytes(), json_grammar({"type": "object", **schema}), log_level=0)


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")
