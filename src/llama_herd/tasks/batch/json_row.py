"""A line of JSON as a row."""

import json
from typing import NoReturn

from llama_herd.tasks.batch.lines import MAX_LINE_BYTES, Line
from llama_herd.tasks.batch.source_row import SourceRow


def read_row(found: Line | None) -> SourceRow | None:
    """The object that a line holds. The complaint about a bad line never quotes its text."""
    if found is None:
        return None
    line, text = found
    if text is None:
        return SourceRow(line, None, f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        fields = json.loads(text.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        return SourceRow(line, None, f"is not UTF-8 text: byte {error.start} is invalid")
    except json.JSONDecodeError as error:
        return SourceRow(line, None, f"is not valid JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return SourceRow(line, None, "is not valid JSON: NaN, a number that is too long, or too deep nesting")
    if not isinstance(fields, dict):
        return SourceRow(line, None, "must be a JSON object")
    return SourceRow(line, fields)


def _refuse(_: str) -> NoReturn:
    raise ValueError
