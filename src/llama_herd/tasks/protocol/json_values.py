"""JSON in a job and in an answer: what of it is within bounds, and how it is written."""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from llama_herd.tasks.protocol.strict_model import check_text

#: Of the JSON of one field: values of every kind, and how deep they lie in each other.
MAX_VALUES = 16_384
MAX_DEPTH = 32
#: Items of a list that are written in one go, while no other thread runs: with twenty likely tokens each they
#: take some milliseconds.
ITEMS = 512
#: Items of a list of which each may hold much.
FEW_ITEMS = 8

JsonObject = dict[str, Any]


def check_json(values: Collection[object]) -> None:
    """Raise ValueError unless these are JSON, and neither too many nor too deep. No more are looked at."""
    waiting, num_values = [(values, 0)], 0
    while waiting:
        items, depth = waiting.pop()
        num_values += len(items) * (2 if isinstance(items, Mapping) else 1)
        if num_values > MAX_VALUES:
            raise ValueError(f"must hold at most {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"must be at most {MAX_DEPTH} levels deep")
        for item in _values_and_names(items):
            if isinstance(item, dict | list | tuple):
                waiting.append((item, depth + 1))
            else:
                _check_scalar(item)


def json_text(value: object) -> str:
    """A value as JSON on one line: as its length is counted, and as answers have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_pieces(value: Any) -> Iterator[str]:
    """A value as JSON on one line, in pieces none of which takes long to write."""
    if isinstance(value, dict) and value:
        mark = "{"
        for name, one in value.items():
            yield f"{mark}{json_text(name)}:"
            yield from json_pieces(one)
            mark = ","
        yield "}"
    elif isinstance(value, list) and 0 < len(value) <= FEW_ITEMS:
        mark = "["
        for one in value:
            yield mark
            yield from json_pieces(one)
            mark = ","
        yield "]"
    elif isinstance(value, list) and len(value) > ITEMS:
        for start in range(0, len(value), ITEMS):
            yield f"{',' if start else '['}{json_text(value[start : start + ITEMS])[1:-1]}"
        yield "]"
    else:
        yield json_text(value)


def num_bytes(texts: Iterable[str]) -> int:
    """The length of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _values_and_names(values: Collection[object]) -> Iterator[object]:
    """The values in an array or object, and an object's names."""
    if isinstance(values, Mapping):
        if not all(isinstance(name, str) for name in values):
            raise ValueError("must have strings as names")
        yield from values.values()
    yield from values


def _check_scalar(value: object) -> None:
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must hold finite numbers only")
    elif isinstance(value, int) and value.bit_length() > 64:
        raise ValueError("must hold no number of over 64 bits")
    elif value is not None and not isinstance(value, int | float):
        raise ValueError("must be JSON")
