"""A row of a batch's input before it is understood, and how it is read from a line of a byte stream."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from llama_herd.tasks.openai.request_json import parse_request
from llama_herd.tasks.protocol.bounded_json import JsonTooLarge, RepeatedField
from llama_herd.tasks.settings import MAX_PROMPT_BYTES

#: Longer lines are not read: they exceed the longest prompt that any setting allows.
MAX_LINE_BYTES = 8 << 20

_BOM = b"\xef\xbb\xbf"


class NumberedLine(NamedTuple):
    """A line that is not empty, without its end; `text` is None if it was too long. Numbers count from 1.

    num_bytes: of a line that was too long.
    """

    number: int
    text: bytes | None
    num_bytes: int = 0

    def too_long(self, max_bytes: int) -> "SourceRow":
        """The row of a line that was too long to be read."""
        told = f"must be at most {max_bytes:,} bytes, got {self.num_bytes:,}. Fix: shorten or split it"
        return SourceRow(self.number, None, told)


class LineStream(Protocol):
    """A file, or a source that never blocks and returns None while a line is incomplete."""

    def readline(self, limit: int, /) -> bytes | None: ...


def read_lines(stream: LineStream, max_bytes: int = MAX_LINE_BYTES) -> Iterator[NumberedLine | None]:
    """All lines that are not empty, and None whenever the stream returns it; keeps one line in memory."""
    number, num_long = 0, 0  # num_long: bytes so far of a line that is too long
    while (piece := stream.readline(max_bytes + 1)) != b"":
        if piece is None:
            yield None
            continue
        number += not num_long
        is_whole = piece.endswith(b"\n")
        if num_long or (not is_whole and len(piece) > max_bytes):
            num_long += len(piece) - is_whole
            if is_whole:
                yield NumberedLine(number, None, num_long)
                num_long = 0
            continue
        text = piece.removeprefix(_BOM if number == 1 else b"").rstrip(b"\r\n")
        if text and not text.isspace():
            yield NumberedLine(number, text)
    if num_long:
        yield NumberedLine(number, None, num_long)


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
    line, text, _ = found
    if text is None:
        return found.too_long(max_bytes)
    try:
        fields = parse_request(text, MAX_PROMPT_BYTES)
    except (JsonTooLarge, RepeatedField) as error:
        return SourceRow(line, None, str(error))
    except UnicodeDecodeError as error:
        return SourceRow(line, None, f"is not UTF-8 text: byte {error.start} is invalid")
    except json.JSONDecodeError as error:
        return SourceRow(line, None, f"is not valid JSON: {error.msg} at column {error.colno}")
    except ValueError:
        return SourceRow(line, None, "is not valid JSON: NaN and infinite numbers are none")
    return SourceRow(line, fields, "" if fields is not None else "must be a JSON object")
