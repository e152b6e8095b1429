"""The top fields of a JSON schema as columns: their kinds, and their values in an answer."""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from llama_herd.cli.batch.cell_kind import CellKind, Sort, is_unicode, kind_of, sort_of
from llama_herd.tasks.protocol.bounded_json import refuse_constant

#: References that may lead from one to the next.
_MAX_DEPTH = 32
_SORTS = {"string": Sort.TEXT, "integer": Sort.LONG, "number": Sort.NUMBER, "boolean": Sort.FLAG}
_MEANT = {
    CellKind.TEXT: "a text",
    CellKind.INTEGER: "a whole number of 64 bits",
    CellKind.NUMBER: "a number of 64 bits",
    CellKind.FLAG: "true or false",
    CellKind.JSON: "a text in Unicode",
}


@dataclass(frozen=True)
class SchemaColumn:
    """A property of the schema. is_needed: each answer has it. may_be_null: also as null."""

    name: str
    kind: CellKind
    is_needed: bool
    may_be_null: bool

    def value_in(self, answer: Mapping[str, Any]) -> Any:
        """Its value in an answer; None if it may lack. Raises ValueError, with what it should be."""
        if self.name not in answer:
            if self.is_needed:
                raise ValueError(f"{self.name} is missing")
            return None
        value = answer[self.name]
        if value is None and self.may_be_null:
            return None
        if not self._fits(value):
            raise ValueError(f"{self.name} is not {_MEANT[self.kind]}")
        return int(value) if self.kind is CellKind.INTEGER else value

    def _fits(self, value: Any) -> bool:
        sort = sort_of(value)
        match self.kind:
            case CellKind.INTEGER:
                is_whole = sort is Sort.NUMBER and value.is_integer() and abs(value) <= 2**53
                return is_whole or sort in (Sort.INTEGER, Sort.LONG)
            case CellKind.NUMBER:
                is_number = sort in (Sort.INTEGER, Sort.LONG, Sort.NUMBER)
                return is_number and abs(value) != float("inf")
            case CellKind.FLAG:
                return sort is Sort.FLAG
            case CellKind.TEXT:
                return sort is Sort.TEXT and is_unicode(value)
        return is_unicode(json.dumps(value, ensure_ascii=False))


def schema_columns(response_format: Mapping[str, Any] | None) -> list[SchemaColumn]:
    """The columns of a `response_format`; none unless it is a schema of objects with properties."""
    schema = ((response_format or {}).get("json_schema") or {}).get("schema")
    own = _resolved(schema, schema)
    properties = own.get("properties")
    if not isinstance(properties, Mapping):
        return []
    needed = own.get("required", ())
    columns = []
    for name, field in properties.items():
        sorts = {*_sorts(field, schema, _MAX_DEPTH)}
        kind = _kind_of({sort for sort in sorts if sort is not None})
        may_be_null = None in sorts or kind is CellKind.JSON
        columns.append(SchemaColumn(name, kind, name in needed, may_be_null))
    return columns


def _kind_of(sorts: Set[Sort]) -> CellKind:
    """As of values, but where a schema takes any number, it is read as a double."""
    if Sort.NUMBER in sorts:
        sorts = sorts - {Sort.INTEGER, Sort.LONG}
    return kind_of(sorts) if sorts else CellKind.JSON


def _resolved(field: Any, schema: Any) -> Mapping[str, Any]:
    """What a schema's reference within itself leads to, or itself; empty: to nothing that is an object."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(field, Mapping):
            return {}
        if "$ref" not in field:
            return field
        found: Any = schema
        for step in str(field["$ref"]).removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        field = found
    return {}


def _sorts(field: Any, schema: Any, depth: int) -> Iterator[Sort | None]:
    """The sorts of the values that a field may have; None is null."""
    own = _resolved(field, schema)
    branches = own.get("anyOf") or own.get("oneOf") or own.get("allOf")
    if "const" in own or "enum" in own:
        for value in own.get("enum", [own.get("const")]):
            yield None if value is None else sort_of(value)
    elif branches and depth:
        for branch in branches:
            yield from _sorts(branch, schema, depth - 1)
    else:
        types = own.get("type")
        for type in [types] if isinstance(types, str) else types or ["any"]:
            yield None if type == "null" else _SORTS.get(type, Sort.OTHER)


def read_answer(columns: Sequence[SchemaColumn], text: str | None) -> tuple[dict[str, Any], str]:
    """The values of an answer, None for each that it lacks; and the complaint about it, or an empty one."""
    values: dict[str, Any] = dict.fromkeys(column.name for column in columns)
    try:
        found = json.loads(text or "", parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return values, "the answer is not JSON"
    if not isinstance(found, dict):
        return values, "the answer is not a JSON object"
    complaints = []
    for column in columns:
        try:
            values[column.name] = column.value_in(found)
        except ValueError as error:
            complaints.append(str(error))
    return values, "; ".join(complaints)
