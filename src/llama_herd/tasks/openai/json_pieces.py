"""JSON in pieces: Python writes a value in one go, and no other thread of the process runs meanwhile."""

from collections.abc import Iterator
from typing import Any

from llama_herd.tasks.protocol.chat import json_text

#: Items of a list that are written together: with twenty likely tokens each they take some milliseconds.
ITEMS = 512


def json_pieces(value: Any) -> Iterator[str]:
    """A value as JSON on one line, in pieces none of which takes long to write."""
    if isinstance(value, dict) and value:
        mark = "{"
        for name, one in value.items():
            yield f"{mark}{json_text(name)}:"
            yield from json_pieces(one)
            mark = ","
        yield "}"
    elif isinstance(value, list) and len(value) > ITEMS:
        for start in range(0, len(value), ITEMS):
            yield f"{',' if start else '['}{json_text(value[start : start + ITEMS])[1:-1]}"
        yield "]"
    else:
        yield json_text(value)
