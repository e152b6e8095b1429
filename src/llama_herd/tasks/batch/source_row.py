"""A row of a batch's input, before it is understood."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class SourceRow(NamedTuple):
    """A row as it was read: its fields, or the complaint about it. `line` is its number for people."""

    line: int
    fields: Mapping[str, Any] | None
    complaint: str = ""
