"""A row of a batch's input before it is understood, and how it is read from a line of a byte stream."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from llama_herd.tasks.openai.request_json import parse_request
from llama_herd.tasks.protocol.bounded_json import JsonTooLarge
from llama_herd.tasks.settings import MAX_PROMPT_BYTES

#: Longer lines are not read: they exceed the longest prompt that any setting allows.
MAX_LINE_BYTES = 8 << 20

_BOM = b"\xef\xbb\xbf"


class NumberedLine(NamedTuple):
    """A line that is not empty, without its end; `text` is None if it was too long. Numbers count from 1."""

    number: int
    text: bytes | None


class LineStream(Protocol):
    """A file, or a source that never blocks and returns None while a line is incomplete."""

    def readline(self, limit: int, /) -> bytes | None: ...


def read_lines(stream: LineStream, max_bytes: int = MAX_LINE_BYTES) -> Iterator[NumberedLine | None]:
    """All lines that are not empty, and None whenever the stream returns it; keeps one line in memory."""
    number, is_rest = 0, False
    while (piece := stream.readline(max_bytes + 1)) != b"":
        if piece is None:
            yield None
            continue
        is_known, is_rest = is_rest, not piece.endswith(b"\n")
        if is_known:
            continue
        number += 1
        text = piece.removeprefix(_BOM if number == 1 else b"").rstrip(b"\r\n")
        if is_rest and len(piece) > max_bytes:
            yield NumberedLine(number, None)
        elif text and not text.isspace():
            yield NumberedLine(number, text)


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
