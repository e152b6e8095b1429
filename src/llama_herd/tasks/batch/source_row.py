"""A row of a batch's input, before it is understood; and how one is read from a line of JSON."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES, NumberedLine
from llama_herd.tasks.bounded_json import MAX_FIELDS, MAX_VALUES, JsonTooLarge, parse_bounded
from llama_herd.tasks.job import PROMPT_ID_BYTES
from llama_herd.tasks.settings import MAX_PROMPT_BYTES

#: Values and names of a row: with the ids of the longest prompt that any setting allows.
MAX_ROW_VALUES = MAX_PROMPT_BYTES // PROMPT_ID_BYTES + MAX_VALUES


class SourceRow(NamedTuple):
    """A row as it was read: its fields, or the complaint about it. `line` is its number for people."""

    line: int
    fields: Mapping[str, Any] | None
    complaint: str = ""


def parse_row(found: NumberedLine | None) -> SourceRow | None:
    """Parse a line as a JSON object; None for None: the next line is not complete yet.

    The complaint about a bad line never quotes its text.
    """
    if found is None:
        return None
    line, text = found
    if text is None:
        return SourceRow(line, None, f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        fields = parse_bounded(text, MAX_ROW_VALUES)
    except JsonTooLarge as error:
        return SourceRow(line, None, str(error))
    except UnicodeDecodeError as error:
        return SourceRow(line, None, f"is not UTF-8 text: byte {error.start} is invalid")
    except json.JSONDecodeError as error:
        return SourceRow(line, None, f"is not valid JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return SourceRow(line, None, "is not valid JSON: NaN, a number that is too long, or too deep nesting")
    if not isinstance(fields, dict):
        return SourceRow(line, None, "must be a JSON object")
    if len(fields) > MAX_FIELDS:
        return SourceRow(line, None, f"must have at most {MAX_FIELDS} fields, got {len(fields)}")
    return SourceRow(line, fields)
