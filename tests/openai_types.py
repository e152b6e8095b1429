"""Values of the types of the package `openai`, made of these types: whatever its clients can send or hold."""

import typing
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

#: Of types that have no parts.
_PLAIN: Mapping[Any, tuple[Any, ...]] = {
    str: ("text",),
    int: (3,),
    float: (0.5,),
    bool: (True, False),
    bytes: ("text",),
    object: ({"type": "object"},),
    Any: ({"type": "object"},),
    NoneType: (None,),
}


def fields_of(kind: Any) -> dict[str, Any]:
    """The fields of a TypedDict or a model, with their types; empty if it is neither."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return get_type_hints(kind) if is_typeddict(kind) else {}


def required_of(kind: Any) -> frozenset[str]:
    """The names of the fields that no value lacks."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return frozenset(name for name, field in kind.model_fields.items() if field.is_required())
    return frozenset(kind.__required_keys__)


def variants_of(kind: Any) -> list[Any]:
    """The types of a union; of another type it alone."""
    if get_origin(kind) is typing.Annotated:
        return variants_of(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [variant for one in get_args(kind) for variant in variants_of(one)]
    return [kind]


def values_of(kind: Any) -> list[Any]:
    """Values of a type, of which each object has all fields: together each variant of each field."""
    return [value for variant in variants_of(kind) for value in _values_of(variant)]


def _values_of(kind: Any) -> Iterable[Any]:
    if (parts := fields_of(kind)) or is_typeddict(kind):
        return _objects({name: values_of(part) for name, part in parts.items()})
    if isinstance(kind, TypeVar):
        kind = Any
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return arguments
    if origin in (dict, Mapping):
        return [{str(key): value} for key in values_of(arguments[0]) for value in values_of(arguments[1])]
    if arguments:  # some list
        return [[value] for value in values_of(arguments[0])]
    raise TypeError(f"no values of {kind}")


def _objects(fields: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """As few objects as hold each value of each field."""
    for number in range(max(map(len, fields.values()), default=1)):
        yield {name: values[number % len(values)] for name, values in fields.items()}
