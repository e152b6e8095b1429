"""Files as sources of rows, opened by their suffix: one JSON array, lines, plain text; and standard input."""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from select import POLLIN, poll
from typing import Any, NoReturn, TextIO

from llama_herd.cli.batch.source import STDIN, Source, open_unpacked
from llama_herd.cli.batch.tables import CsvTable, ParquetTable, RowColumns
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES, NumberedLine, read_lines
from llama_herd.tasks.batch.source_row import SourceRow, parse_row

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
class StandardInput:
    """A source of rows: one JSON object a line."""

    number: int = 0

    def rows(self) -> Iterator[SourceRow | None]:
        try:
            yield from map(parse_row, read_lines(ArrivingLines(self.number)))
        except OSError as error:
            raise BadInput(f"standard input cannot be read: {error.strerror}") from None

    def num_rows(self) -> int | None:
        return None


@dataclass(frozen=True)
class JsonLines:
    """A file with one JSON object a line."""

    name: str

    def rows(self) -> Iterator[SourceRow | None]:
        with open_unpacked(self.name) as stream:
            yield from map(parse_row, read_lines(stream))

    def num_rows(self) -> int | None:
        with open_unpacked(self.name) as stream:
            return sum(1 for _ in read_lines(stream))


@dataclass(frozen=True)
class TextLines:
    """A plain text, whose every line that is not empty is a prompt."""

    name: str

    def rows(self) -> Iterator[SourceRow]:
        with open_unpacked(self.name) as stream:
            for line in read_lines(stream):
                if line is not None:  # a file has all its lines
                    yield _prompt(line)

    def num_rows(self) -> int | None:
        return sum(1 for _ in self.rows())


def _prompt(line: NumberedLine) -> SourceRow:
    if line.text is None:
        return SourceRow(line.number, None, f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        return SourceRow(line.number, {"prompt": line.text.decode()})
    except UnicodeDecodeError as error:
        return SourceRow(line.number, None, f"is not UTF-8 text: byte {error.start} is invalid")


#: What tells a file's format.
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".txt", ".csv", ".tsv", ".parquet")


def open_source(name: str, columns: RowColumns) -> Source:
    """The rows of a file, whose suffix tells its format; - is standard input. Raises BadInput."""
    if name == STDIN:
        return StandardInput()
    path = Path(name)
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    match Path(name.removesuffix(".gz")).suffix:
        case ".jsonl" | ".ndjson":
            return JsonLines(name)
        case ".json":
            return JsonArray(name) if _begins_as_array(name) else JsonLines(name)
        case ".txt":
            return TextLines(name)
        case ".csv":
            return CsvTable(path, columns)
        case ".tsv":
            return CsvTable(path, columns, "\t")
        case ".parquet":
            return ParquetTable(path, columns)
        case suffix:
            raise BadInput(
                f"{path}: its suffix {suffix!r} names no format. Fix: rename it to what it is, one of "
                f"{', '.join(_SUFFIXES)}, also with .gz"
            )


def _begins_as_array(name: str) -> bool:
    with open_unpacked(name) as stream:
        return stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
