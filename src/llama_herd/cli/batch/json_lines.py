"""Rows in JSON, one object per line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from llama_herd.cli.batch.arriving import Arriving
from llama_herd.cli.batch.lines import MAX_LINE_BYTES, Line, read_lines
from llama_herd.cli.batch.source import opened
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.source_row import SourceRow


@dataclass(frozen=True)
class JsonLines:
    """A file."""

    name: str

    def rows(self) -> Iterator[SourceRow | None]:
        with opened(self.name) as stream:
            yield from map(_read_object, read_lines(stream))

    def num_rows(self) -> int | None:
        with opened(self.name) as stream:
            return sum(1 for _ in read_lines(stream))


@dataclass(frozen=True)
class StandardInput:
    """Lines from another program, however slowly they come."""

    number: int = 0

    def rows(self) -> Iterator[SourceRow | None]:
        try:
            yield from map(_read_object, read_lines(Arriving(self.number)))
        except OSError as error:
            raise BadInput(f"standard input cannot be read: {error.strerror}") from None

    def num_rows(self) -> int | None:
        return None


def _read_object(found: Line | None) -> SourceRow | None:
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
