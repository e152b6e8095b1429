"""Rows in one JSON array, read element by element."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

from llama_herd.cli.batch.source import open_unpacked
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES
from llama_herd.tasks.batch.source_row import SourceRow

_PIECE_CHARS = 1 << 16
_SPACES = " \t\r\n"
_NO_OBJECT = "must be a JSON object"


@dataclass(frozen=True)
class JsonArray:
    """A file with one JSON array, whose elements are the rows; they count from 1.

    Text that is no JSON ends the reading, since nobody knows where the next row begins: BadInput.
    """

    name: str

    def rows(self) -> Iterator[SourceRow]:
        with open_unpacked(self.name) as stream:
            elements = _Elements(self.name, io.TextIOWrapper(stream, "utf-8-sig"))
            for number, found in enumerate(elements, 1):
                is_object = isinstance(found, dict)
                yield SourceRow(number, found) if is_object else SourceRow(number, None, _NO_OBJECT)

    def num_rows(self) -> int | None:
        return sum(1 for _ in self.rows())


class _Elements:
    """The elements of an array, with little more than one of them in memory."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._text = ""
        self._at = 0  # what comes before it in the text has been taken
        self._is_whole = False  # nothing is left to read
        self._num_taken = 0
        self._decoder = json.JSONDecoder(parse_constant=_refuse)

    def __iter__(self) -> Iterator[Any]:
        self._take("[")
        if self._peek() != "]":
            yield self._element()
        while self._peek() == ",":
            self._take(",")
            yield self._element()
        self._take("]")
        if self._peek():
            raise self._error("text follows the array")

    def _element(self) -> Any:
        self._peek()
        while True:
            try:
                element, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._is_whole or len(self._text) > MAX_LINE_BYTES:
                    raise self._error(error.msg) from None
            except (ValueError, RecursionError):
                raise self._error("NaN, a number that is too long, or too deep nesting") from None
            else:
                if end < len(self._text) or self._is_whole:  # a number may go on in the next piece
                    self._at = end
                    self._num_taken += 1
                    return element
            self._read()

    def _take(self, mark: str) -> None:
        if self._peek() != mark:
            raise self._error(f"{mark} is missing")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACES:
                    return self._text[self._at]
                self._at += 1
            if self._is_whole:
                return ""
            self._read()

    def _read(self) -> None:
        """Read as much as is left of the text, so that a long element is tried a few times only."""
        self._text, self._at = self._text[self._at :], 0
        try:
            piece = self._stream.read(max(_PIECE_CHARS, len(self._text)))
        except UnicodeDecodeError as error:
            raise self._error(f"it is not UTF-8 text: {error.reason}") from None
        self._text += piece
        self._is_whole = not piece

    def _error(self, reason: str) -> BadInput:
        where = f"behind row {self._num_taken}" if self._num_taken else "at its beginning"
        return BadInput(f"{self._name} is not valid JSON {where}: {reason}")


def _refuse(_: str) -> NoReturn:
    raise ValueError
