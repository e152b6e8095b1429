"""The kinds of a table's columns where JSON becomes one: fields of answers, and of objects that are rows."""

import json
from collections.abc import Set
from enum import StrEnum
from typing import Any

from llama_herd.cli.batch.row_template import cell_text

#: Whole numbers that Parquet's int64 holds, and those that a double has exactly.
_INT64 = range(-(2**63), 2**63)
_EXACT = range(-(2**53), 2**53 + 1)


class CellKind(StrEnum):
    """The kind of a column, by its type in Parquet. JSON is a text of any value, VECTOR a list of float32."""

    TEXT = "string"
    INTEGER = "int64"
    NUMBER = "double"
    FLAG = "bool"
    JSON = "json"
    VECTOR = "vector"

    @property
    def arrow_name(self) -> str:
        return CellKind.TEXT if self is CellKind.JSON else self

    def cell(self, value: Any) -> Any:
        """A value of this kind as a cell in Parquet."""
        if value is None or self in (CellKind.INTEGER, CellKind.FLAG):
            return value
        if self is CellKind.NUMBER:
            return float(value)
        return json.dumps(value, ensure_ascii=False) if self is CellKind.JSON else cell_text(value)


class Sort(StrEnum):
    """The sorts of JSON values that decide a column's kind. LONG: a whole number that no double has."""

    TEXT = "text"
    INTEGER = "integer"
    LONG = "long"
    NUMBER = "number"
    FLAG = "flag"
    OTHER = "other"


def sort_of(value: Any) -> Sort:
    match value:
        case bool():
            return Sort.FLAG
        case str():
            return Sort.TEXT
        case float():
            return Sort.NUMBER
        case int():
            return Sort.INTEGER if value in _EXACT else Sort.LONG if value in _INT64 else Sort.OTHER
    return Sort.OTHER


#: The first row that has all sorts of a column tells its kind; a column without values has texts.
_KINDS = (
    ({Sort.TEXT}, CellKind.TEXT),
    ({Sort.INTEGER, Sort.LONG}, CellKind.INTEGER),
    ({Sort.INTEGER, Sort.NUMBER}, CellKind.NUMBER),
    ({Sort.FLAG}, CellKind.FLAG),
)


def kind_of(sorts: Set[Sort]) -> CellKind:
    """The kind that holds values of all these sorts as they are."""
    return next((kind for among, kind in _KINDS if sorts <= among), CellKind.JSON)


def is_unicode(text: str) -> bool:
    """Whether a text can be written: it has no half of a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
