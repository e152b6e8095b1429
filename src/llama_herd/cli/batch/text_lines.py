"""Rows in plain text: every line that is not empty is a prompt."""

from collections.abc import Iterator
from dataclasses import dataclass

from llama_herd.cli.batch.source import opened
from llama_herd.tasks.batch.numbered_lines import MAX_LINE_BYTES, NumberedLine, read_lines
from llama_herd.tasks.batch.source_row import SourceRow


@dataclass(frozen=True)
class TextLines:
    """A file."""

    name: str

    def rows(self) -> Iterator[SourceRow]:
        with opened(self.name) as stream:
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
