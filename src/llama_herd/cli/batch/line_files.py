"""Files whose every line is a row: JSON objects, or plain prompts."""

from collections.abc import Iterator
from dataclasses import dataclass

from llama_herd.cli.batch.source import open_unpacked
from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES, NumberedLine, read_lines
from llama_herd.tasks.batch.source_row import SourceRow, parse_row


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
