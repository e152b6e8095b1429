"""The sources of rows that are no tables: lines, a JSON array, and standard input."""

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from select import POLLIN, poll
from typing import Any, TextIO

from llama_herd.cli.batch.text_file import open_text
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.source_row import (
    MAX_LINE_BYTES,
    NumberedLine,
    SourceRow,
    parse_row,
    read_lines,
)
from llama_herd.tasks.protocol.bounded_json import RepeatedField, fields_once, refuse_constant

#: The field, and by default the column, of what a row asks; and where rows are texts.
PROMPT, TEXT = "prompt", "text"


class Source(ABC):
    """A source of rows."""

    @abstractmethod
    def rows(self) -> Iterator[SourceRow | None]:
        """All rows; None while the next one has not arrived."""

    def num_rows(self) -> int | None:
        """Reads the source once; None if it can be read only once."""
        return sum(1 for _ in self.rows())


@dataclass(frozen=True)
class Lines(Source):
    """A file whose every line that is not empty is a row."""

    name: str
    read_row: Callable[[NumberedLine | None], SourceRow | None] = parse_row
    encoding: str | None = None

    def rows(self) -> Iterator[SourceRow | None]:
        with open_text(self.name, self.encoding) as stream:
            yield from map(self.read_row, read_lines(stream))

    def num_rows(self) -> int | None:
        with open_text(self.name, self.encoding) as stream:
            return sum(1 for _ in read_lines(stream))


def read_prompt(found: NumberedLine | None, field: str = PROMPT) -> SourceRow | None:
    """A line of plain text as a prompt, or as another field."""
    if found is None:
        return None
    line, text, _ = found
    if text is None:
        return found.too_long(MAX_LINE_BYTES)
    try:
        return SourceRow(line, {field: text.decode()})
    except UnicodeDecodeError as error:
        return SourceRow(line, None, f"is not UTF-8 text: byte {error.start} is invalid")


_PIECE_BYTES = 1 << 16


class ArrivingLines:
    """The lines of a pipe, a terminal or a file that have arrived so far."""

    def __init__(self, number: int) -> None:
        """`number` is the descriptor of an open file that nothing else reads."""
        self._number = number
        self._poll = poll()
        self._poll.register(number, POLLIN)
        self._bytes = bytearray()
        self._is_over = False

    def readline(self, limit: int) -> bytes | None:
        """The next line, or its first `limit` bytes; b"" at the end, None while the line is incomplete."""
        while not self._is_over and len(self._bytes) < limit and b"\n" not in self._bytes:
            if not self._poll.poll(0):
                return None
            piece = os.read(self._number, _PIECE_BYTES)
            self._bytes += piece
            self._is_over = not piece
        end = self._bytes.find(b"\n", 0, limit) + 1 or limit
        line = bytes(self._bytes[:end])
        del self._bytes[:end]
        return line


@dataclass(frozen=True)
class StandardInput(Source):
    """A source of rows: one JSON object a line."""

    number: int = 0

    def rows(self) -> Iterator[SourceRow | None]:
        try:
            yield from map(parse_row, read_lines(ArrivingLines(self.number)))
        except OSError as error:
            raise BadInput(f"standard input cannot be read: {error.strerror}") from None

    def num_rows(self) -> int | None:
        return None


_PIECE_CHARS = 1 << 16
_SPACES = " \t\r\n"
_TOO_LONG = f"an element has more than {MAX_LINE_BYTES:,} characters"


@dataclass(frozen=True)
class JsonArray(Source):
    """A file with one JSON array, whose elements are the rows; they count from 1.

    Text that is no JSON ends the reading, since nobody knows where the next row begins: BadInput.
    """

    name: str
    encoding: str | None = None

    def rows(self) -> Iterator[SourceRow]:
        with open_text(self.name, self.encoding) as stream:
            elements = _Elements(self.name, io.TextIOWrapper(stream, "utf-8-sig"))
            for number, found in enumerate(elements, 1):
                if isinstance(found, dict):
                    yield SourceRow(number, found)
                else:
                    yield SourceRow(number, None, "must be a JSON object")


class _Elements:
    """The elements of an array, with little more than one of them in memory."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._text = ""
        self._at = 0  # what comes before it in the text has been taken
        self._is_whole = False  # nothing is left to read
        self._num_taken = 0
        self._decoder = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=fields_once)

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
                if self._is_whole:
                    raise self._error(error.msg) from None
                if len(self._text) > MAX_LINE_BYTES:
                    raise self._error(f"{error.msg}, or {_TOO_LONG}") from None
            except RepeatedField as error:
                raise self._error(f"an object {error}") from None
            except (ValueError, RecursionError):
                raise self._error("NaN, a number that is too long, or too deep nesting") from None
            else:
                if end - self._at > MAX_LINE_BYTES:
                    raise self._error(_TOO_LONG)
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
