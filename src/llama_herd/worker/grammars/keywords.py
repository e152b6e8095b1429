"""Keywords of JSON Schema, in an order in which llguidance reads together what belongs together."""

from collections.abc import Mapping
from typing import Any

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


def in_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a schema, what belongs together side by side, in an order that keeps that of names."""
    keys = [key for key in schema if key in KEYWORDS]
    applied = [key for key in keys if key in _APPLIED]
    own = [key for key in keys if key not in _APPLIED]
    is_behind = "properties" not in own or not applied or keys.index("properties") < keys.index(applied[0])
    return {key: schema[key] for key in (own + applied if is_behind else applied + own)}
