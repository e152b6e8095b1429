"""What of a table's row becomes its job: a prompt or messages with columns in them, and its name.

`Classify {title}: {text}` has the columns title and text. {{ and }} stand for braces.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from llama_herd.errors import BadInput
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean

#: A brace that stands for itself, a column, or a brace that is neither.
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
#: Columns that an error names.
_MAX_NAMED = 20


def cell_text(value: Any) -> str:
    """A value of a table as text: texts as they are, all others as JSON. Raises ValueError: no JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def named(columns: Sequence[str]) -> str:
    """The names of columns for people: odd ones in quotes."""
    shown = [name if name.isidentifier() else repr(name) for name in columns[:_MAX_NAMED]]
    rest = f" and {len(columns) - _MAX_NAMED:,} more" if len(columns) > _MAX_NAMED else ""
    return ", ".join(shown) + rest if shown else "none"


@dataclass(frozen=True)
class TextTemplate:
    """A text between whose pieces columns stand: a piece more than there are columns."""

    pieces: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Raises BadInput, with the option `name`, for a brace that neither names a column nor is doubled."""
        pieces, columns, start = [""], [], 0
        for found in _PIECE.finditer(text):
            pieces[-1] += text[start : found.start()]
            start = found.end()
            if found[1] is not None:
                columns.append(found[1])
                pieces.append("")
            elif len(found[0]) == 2:
                pieces[-1] += found[0][0]
            else:
                raise BadInput(
                    f"{name}: the {found[0]} at character {found.start() + 1} belongs to no column. "
                    f"Fix: write {{NAME}} for a column, and {found[0] * 2} for a brace"
                )
        pieces[-1] += text[start:]
        return cls(tuple(pieces), tuple(columns))

    def fill(self, cells: Mapping[str, str]) -> str:
        texts = [cells[column] for column in self.columns]
        return self.pieces[0] + "".join(
            text + piece for text, piece in zip(texts, self.pieces[1:], strict=True)
        )


@dataclass(frozen=True)
class RowTemplate:
    """The fields of a job, with templates in place of texts; and the column of the row's name, if it has one.

    option: what a person named the columns by.
    """

    fields: Mapping[str, Any]
    id_column: str | None
    option: str

    @property
    def columns(self) -> list[str]:
        """All columns that a row needs, each once."""
        found = [*_columns(self.fields), *([] if self.id_column is None else [self.id_column])]
        return list(dict.fromkeys(found))

    def check_columns(self) -> None:
        """Raise BadInput if no column is in the prompt."""
        if next(_columns(self.fields), None) is None:
            raise BadInput(
                f"{self.option}: names no column, so all rows would be the same. Fix: write {{NAME}} for one"
            )

    def check(self, names: Sequence[str], source: str, hint: str = "") -> None:
        """Raise BadInput if a table lacks a column; hint: what else its first line may tell."""
        missing = next((name for name in self.columns if name not in names), None)
        if missing is not None:
            option = "--id-column" if missing == self.id_column else self.option
            meant = did_you_mean([named([name]) for name in close_names(missing, names)])
            raise BadInput(
                f"{source} has no column {named([missing])}; its columns are: {named(names)}{meant or '.'} "
                f"Fix: {hint or f'name the right one by {option}'}"
            )

    def fill(self, row: SourceRow) -> SourceRow:
        """A row of a table as a row of the batch. A value that is missing or null is a complaint."""
        if row.fields is None:
            return row
        cells = ((name, row.fields.get(name)) for name in self.columns)
        texts = {name: cell_text(value) for name, value in cells if value is not None}
        own = {} if self.id_column is None else {"custom_id": texts.get(self.id_column)}
        empty = [name for name in self.columns if name not in texts]
        if empty:
            return SourceRow(row.line, own, f"has no value in the column {named(empty[:1])}")
        return SourceRow(row.line, {**_filled(self.fields, texts), **own})


def read_messages(path: Path) -> list[Any]:
    """The messages in a file. Raises BadInput unless it is JSON with an array that is not empty."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--messages {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found:
        raise BadInput(
            f'--messages {path}: must be JSON, an array of messages: [{{"role": "user", "content": "..."}}]'
        )
    return found


def messages_template(value: Any) -> Any:
    """Messages, or a part of them, with a template for each text. Raises BadInput."""
    match value:
        case str():
            return TextTemplate.parse(value, "--messages")
        case list():
            return [messages_template(one) for one in value]
        case dict():
            return {name: messages_template(one) for name, one in value.items()}
    return value


def _filled(value: Any, cells: Mapping[str, str]) -> Any:
    match value:
        case TextTemplate():
            return value.fill(cells)
        case list():
            return [_filled(one, cells) for one in value]
        case dict():
            return {name: _filled(one, cells) for name, one in value.items()}
    return value


def _columns(value: Any) -> Iterator[str]:
    match value:
        case TextTemplate():
            yield from value.columns
        case list():
            for one in value:
                yield from _columns(one)
        case dict():
            yield from _columns([*value.values()])
