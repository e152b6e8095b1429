"""A row of a batch's input, before it is understood; and how one is read from a line of JSON."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES, NumberedLine
from llama_herd.tasks.openai.request_json import parse_request
from llama_herd.tasks.protocol.bounded_json import JsonTooLarge
from llama_herd.tasks.settings import MAX_PROMPT_BYTES


class SourceRow(NamedTuple):
    """A row as it was read: its fields, or the complaint about it. `line` is its number for people."""

    line: int
    fields: Mapping[str, Any] | None
    complaint: str = ""


def parse_row(found: NumberedLine | None, max_bytes: int = MAX_LINE_BYTES) -> SourceRow | None:
    """Parse a line as a JSON object; None for None: the next line is not complete yet.

    max_bytes: with which the line was read.
    The complaint about a bad line never quotes its text.
    """
    if found is None:
        return None
    line, text = found
    if text is None:
        return SourceRow(line, None, f"is longer than {max_bytes} bytes")
    try:
        fields = parse_request(text, MAX_PROMPT_BYTES)
    except JsonTooLarge as error:
        return SourceRow(line, None, str(error))
    except UnicodeDecodeError as error:
        return SourceRow(line, None, f"is not UTF-8 text: byte {error.start} is invalid")
    except json.JSONDecodeError as error:
        return SourceRow(line, None, f"is not valid JSON: {error.msg} at column {error.colno}")
    except ValueError:
        return SourceRow(line, None, "is not valid JSON: NaN and infinite numbers are none")
    return SourceRow(line, fields, "" if fields is not None else "must be a JSON object")
