"""Values that a schema lists, and by them `uniqueItems`, which llguidance does not know."""

from collections.abc import Mapping
from itertools import permutations
from math import inf, perm
from typing import Any

#: Most orders in which items may come: all of five values.
MOST_ORDERS = 120
_KINDS: Mapping[str, tuple[type, ...]] = {
    "any": (str, int, float, bool, type(None)),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def without_unique_items(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without its `uniqueItems`, where other keywords say the same; else as it is."""
    if "uniqueItems" not in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "uniqueItems"}
    if schema["uniqueItems"] is False or schema.get("maxItems", inf) <= 1:
        return rest
    listed = listed_values(rest.pop("items", None))
    most = min(len(listed), schema.get("maxItems", inf))
    if not listed or "prefixItems" in schema or perm(len(listed), most) > MOST_ORDERS:
        return schema
    orders = [
        {"items": [{"const": one} for one in order], "additionalItems": False}
        for order in permutations(listed, most)
    ]
    return {**rest, "allOf": [*rest.get("allOf", ()), {"anyOf": orders}]}


def listed_values(schema: Any) -> list[Any]:
    """Different values of which any is one of a schema, and no other; none where they are not listed."""
    match schema:
        case {"const": value, **more}:
            found = [value]
        case {"enum": list(found), **more}:
            pass
        case {"anyOf": list(options), **more}:
            parts = [listed_values(one) for one in options]
            found = [one for part in parts for one in part] if all(parts) else []
        case {"type": "boolean", **more}:
            found = [False, True]
        case _:
            return []
    kinds = _KINDS.get(str(more.pop("type", "any")), ())
    if more or not all(type(one) in kinds for one in found):
        return []
    return [*{(isinstance(one, bool), one): one for one in found}.values()]
