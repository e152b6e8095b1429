"""Rows under heads; and where a terminal is too narrow for them, a few lines for each row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from llama_herd.cli.terminal import harmless
from llama_herd.tasks.client.status_texts import UNKNOWN_TEXT


class ColumnKind(Enum):
    """The kind of a column: whole cells, which people copy; names, which may be wrapped; or figures."""

    WHOLE = auto()
    NAME = auto()
    FIGURE = auto()


WHOLE, NAME, FIGURE = ColumnKind
ColumnKinds = Mapping[str, ColumnKind]

#: A name is not wrapped into less.
NAME_WIDTH = 10
GAP = "  "


class FoldingTable:
    """A table that cuts off nothing, in whatever width it is shown.

    Where its columns do not fit, each row becomes its first cell, and below it the others with their heads;
    those without content are left out.
    """

    def __init__(self, columns: ColumnKinds, rows: Iterable[Sequence[str]]) -> None:
        self._columns = columns
        self._rows = [[harmless(cell) for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least_width <= options.max_width:
            yield self._table()
            return
        for row in self._rows:
            told = zip(self._columns, row, strict=True)
            _, *facts = [f"{head} {cell}" for head, cell in told if cell not in ("", UNKNOWN_TEXT)]
            yield from map(Text, (row[0], *_lines(facts, options.max_width)))

    @property
    def _least_width(self) -> int:
        widths = [len(GAP) * (len(self._columns) - 1)]
        for (head, kind), cells in zip(self._columns.items(), zip(*self._rows, strict=True), strict=True):
            width = max(map(cell_len, (head, *cells)))
            widths.append(min(width, max(len(head), NAME_WIDTH)) if kind is NAME else width)
        return sum(widths)

    def _table(self) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False)
        for head, kind in self._columns.items():
            justify: JustifyMethod = "right" if kind is FIGURE else "left"
            table.add_column(head, justify=justify, no_wrap=kind is not NAME, overflow="fold")
        for row in self._rows:
            table.add_row(*row)
        return table


def _lines(facts: Sequence[str], width: int) -> Iterator[str]:
    """Facts side by side as far as they fit."""
    line = ""
    for fact in facts:
        if line and cell_len(line + GAP + fact) > width:
            yield line
            line = ""
        line += GAP + fact
    if line:
        yield line
