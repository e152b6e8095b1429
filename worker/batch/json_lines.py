"""Rows in a file of JSON, an object a line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from llama_herd.worker.batch.lines import MAX_LINE_BYTES, read_lines
from llama_herd.worker.batch.source import STDIN, SourceRow, opened


@dataclass(frozen=True)
class JsonLines:
    """A JSON object a line."""

    name: str

    def rows(self) -> Iterator[SourceRow]:
        with opened(self.name) as stream:
            for line in read_lines(stream):
                yield _read_object(line.number, line.text)

    def num_rows(self) -> int | None:
        if self.name == STDIN:
            return None
        with opened(self.name) as stream:
            return sum(1 for _ in read_lines(stream))


def _read_object(line: int, text: bytes | None) -> SourceRow:
    """The object that a line holds; what is said of a wrong one never holds any of its text."""
    if text is None:
        return SourceRow(line, None, f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        found = json.loads(text.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        return SourceRow(line, None, f"is not UTF-8 text: byte {error.start} is no part of it")
    except json.JSONDecodeError as error:
        return SourceRow(line, None, f"is no JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return SourceRow(line, None, "is no JSON: a number or a depth that no reader takes")
    if not isinstance(found, dict):
        return SourceRow(line, None, "must be a JSON object")
    return SourceRow(line, found)


def _refuse(_: str) -> NoReturn:
    raise ValueError
