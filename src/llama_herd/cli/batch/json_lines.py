"""Rows in JSON, one object per line."""

from collections.abc import Iterator
from dataclasses import dataclass

from llama_herd.cli.batch.arriving import Arriving
from llama_herd.cli.batch.source import opened
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.numbered_lines import read_lines
from llama_herd.tasks.batch.source_row import SourceRow, parse_row


@dataclass(frozen=True)
class JsonLines:
    """A file."""

    name: str

    def rows(self) -> Iterator[SourceRow | None]:
        with opened(self.name) as stream:
            yield from map(parse_row, read_lines(stream))

    def num_rows(self) -> int | None:
        with opened(self.name) as stream:
            return sum(1 for _ in read_lines(stream))


@dataclass(frozen=True)
class StandardInput:
    """Lines from another program, however slowly they come."""

    number: int = 0

    def rows(self) -> Iterator[SourceRow | None]:
        try:
            yield from map(parse_row, read_lines(Arriving(self.number)))
        except OSError as error:
            raise BadInput(f"standard input cannot be read: {error.strerror}") from None

    def num_rows(self) -> int | None:
        return None
