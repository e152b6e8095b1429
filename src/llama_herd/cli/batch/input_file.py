"""The input of a batch: a file, opened by its suffix, or standard input; and how its rows become jobs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llama_herd.cli.batch.parquet_table import ParquetTable
from llama_herd.cli.batch.row_template import RowTemplate, TextTemplate, messages_template, named
from llama_herd.cli.batch.sources import PROMPT, JsonArray, Lines, Source, StandardInput, read_prompt
from llama_herd.cli.batch.tables import CsvTable, RecordTable, Table
from llama_herd.cli.batch.text_file import check_encoding, open_text
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import Settings

#: The name of standard input.
STDIN = "-"
#: What tells a file's format, and which of these are tables in any case, with what separates their cells.
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".txt", ".csv", ".tsv", ".parquet")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class InputOptions:
    """How a file is read: of `prompt`, `prompt_column` and `messages` at most one is given.

    Any of these and `id_column` makes a table of lines and objects, too. text_field: that
    of a row which is a text; None: it is a prompt. Raises BadInput for what contradicts itself.
    """

    prompt: str | None = None
    prompt_column: str | None = None
    messages: Sequence[Any] | None = None
    id_column: str | None = None
    encoding: str | None = None
    separator: str | None = None
    text_field: str | None = None

    def __post_init__(self) -> None:
        names = ("prompt", "prompt_column", "messages")
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise BadInput(f"{' and '.join(given)}: each says what the prompt is. Fix: give one of them")
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise BadInput(f"--separator {self.separator!r}: must be one character such as ';', or tab")
        if self.encoding is not None:
            check_encoding(self.encoding)
        self.template.check_columns()

    def check(self, settings: Settings) -> None:
        """Raise InvalidJob if the messages could be those of no job."""
        if self.messages is not None:
            GenerationJob.parse({"messages": self.messages}, settings)

    @property
    def is_table(self) -> bool:
        """Whether objects and lines are rows of a table."""
        mine = (self.prompt, self.prompt_column, self.messages, self.id_column)
        return any(one is not None for one in mine)

    @property
    def template(self) -> RowTemplate:
        """Raises BadInput."""
        if self.messages is not None:
            return RowTemplate({"messages": messages_template(self.messages)}, self.id_column, "--messages")
        if self.prompt is not None:
            whole = TextTemplate.parse(self.prompt, "--prompt")
            return RowTemplate({self.field: whole}, self.id_column, "--prompt")
        column = TextTemplate(("", ""), (self.prompt_column or self.field,))
        return RowTemplate({self.field: column}, self.id_column, "--prompt-column")

    @property
    def field(self) -> str:
        """The field of a row that has what stands in its column, or on its line."""
        return self.text_field or PROMPT


@dataclass(frozen=True)
class TableSource(Source):
    """The rows of a table as those of a batch."""

    table: Table
    template: RowTemplate

    def rows(self) -> Iterator[SourceRow | None]:
        for row in self.table.records(self.template.columns):
            yield None if row is None else self.template.fill(row)

    def num_rows(self) -> int | None:
        return self.table.num_rows()

    def kept(self, dropped: Sequence[str]) -> list[str]:
        """The columns for a table of answers, without those to leave out. Raises BadInput."""
        if self.table.name == STDIN:
            raise BadInput(
                "a table of answers takes over the columns of its input, but standard input is read only "
                "once. Fix: save it in a file first, or write a .jsonl file"
            )
        columns = self.table.columns
        for name in dropped:
            if name not in columns:
                meant = did_you_mean(close_names(name, columns))
                raise BadInput(
                    f"{self.table.name} has no column {named([name])}, which --drop names; its columns "
                    f"are: {named(columns)}{meant}"
                )
        kept = [name for name in columns if name not in dropped]
        self.table.check_single(kept, "rename all but one, or leave them out by --drop {}")
        return kept

    def check(self) -> None:
        """Raise BadInput if the template cannot be filled."""
        if self.table.name == STDIN:  # each row is checked when it comes
            return
        self.table.check(self.template)
        if isinstance(self.table, ParquetTable):
            self.table.check_plain(self.template.columns, "a prompt", "name another column than {}")


def open_source(name: str, options: InputOptions) -> Source:
    """The rows of a file, whose suffix tells its format; - is standard input. Raises BadInput."""
    try:
        if name != STDIN and not Path(name).is_file():
            if not Path(name).exists():
                raise BadInput(f"{name}: no such file")
            raise BadInput(
                f"{name} is not a plain file, which can be read again by the run that continues this one. "
                "Fix: save it in one, or pipe JSON lines to -"
            )
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}") from None
    suffix = "" if name == STDIN else Path(name.removesuffix(".gz")).suffix
    _check_options(name, suffix, options)
    if suffix in _SEPARATORS:
        table: Table = CsvTable(name, options.separator or _SEPARATORS[suffix], options.encoding)
    elif suffix == ".parquet":
        table = ParquetTable(name)
    else:
        source = _open_rows(name, suffix, options)
        if not options.is_table:
            return source
        table = RecordTable(name, source)
    found = TableSource(table, options.template)
    found.check()
    return found


def _check_options(name: str, suffix: str, options: InputOptions) -> None:
    """Raise BadInput for an option that is for other files."""
    if options.separator is not None and suffix not in _SEPARATORS:
        raise BadInput(f"--separator is for .csv and .tsv, not for {name}")
    if options.encoding is not None and suffix in ("", ".parquet"):
        raise BadInput(f"--encoding is for files of text, not for {name}. Fix: leave it out, or use iconv")


def _open_rows(name: str, suffix: str, options: InputOptions) -> Source:
    """The objects or lines of a file that is no table by itself."""
    if name == STDIN:
        return StandardInput()
    encoding = options.encoding
    match suffix:
        case ".jsonl" | ".ndjson":
            return Lines(name, encoding=encoding)
        case ".json":
            with open_text(name, encoding) as stream:
                begin = stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
            return JsonArray(name, encoding) if begin.startswith(b"[") else Lines(name, encoding=encoding)
        case ".txt":
            return Lines(name, partial(read_prompt, field=options.field), encoding)
    raise BadInput(
        f"{name}: its suffix {suffix!r} names no format. Fix: rename it to what it is, one of "
        f"{', '.join(_SUFFIXES)}, also with .gz"
    )
