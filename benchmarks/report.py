"""A report: the tables of one benchmark, and what must be known to judge them.

    python -m benchmarks.report [NAME ...] [--write]     # what was kept, without measuring

Each is a file in `benchmarks/results`. Some stand between their own marks in the page of measurements, or in
the README.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "measured.md"
README = ROOT / "README.md"

#: Words, a number, or the numbers of some rounds, of which the median counts.
Cell = str | float | Sequence[float]
Row = Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """Rows that a reader compares, by the names of their columns; numbers stand to the right."""

    rows: Sequence[Row]
    title: str = ""

    @property
    def head(self) -> list[str]:
        return list(self.rows[0])

    def __str__(self) -> str:
        rule = ["---" if isinstance(cell, str) else "---:" for cell in self.rows[0].values()]
        rows = [[figure(row.get(name, "-")) for name in self.head] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (self.head, rule, *rows)]
        return "\n".join([*([f"{self.title}:", ""] if self.title else []), *lines])


def across(what: str, columns: Mapping[str, Row], title: str = "") -> Table:
    """A table whose columns were measured one after the other; `what` heads the names of its rows."""
    names = next(iter(columns.values()))
    rows = [{what: name, **{head: column[name] for head, column in columns.items()}} for name in names]
    return Table(rows, title)


def number(cell: Cell) -> float:
    """The median of rounds; 0 where there is no figure."""
    if isinstance(cell, str):
        return 0.0
    return cell if isinstance(cell, int | float) else median(cell)


def figure(cell: Cell) -> str:
    """At least three digits of a number, and all before its point."""
    if isinstance(cell, str):
        return cell
    value = number(cell)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Report:
    """`part` and `options` stand behind the benchmark's name in the command.

    machine: the processor, where reports of several are kept beside each other.
    """

    benchmark: str
    tables: Sequence[Table]
    conditions: Mapping[str, Any]
    plan: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    options: str = ""
    machine: str = ""

    @classmethod
    def read(cls, path: Path) -> Self:
        kept = json.loads(path.read_text())
        fields = {name: kept[name] for name in cls.__annotations__ if name in kept}
        return cls(**{**fields, "tables": [Table(one["rows"], one["title"]) for one in kept["tables"]]})

    @property
    def section(self) -> str:
        """The name of its marks."""
        return "-".join(filter(None, (self.benchmark, self.part)))

    @property
    def name(self) -> str:
        """Of its file."""
        return "-".join(filter(None, (self.section, self.machine)))

    @property
    def processor(self) -> str:
        return ", ".join(filter(None, (self.conditions["cpu"], self.conditions.get("processor", ""))))

    def __str__(self) -> str:
        """All tables."""
        return self.with_conditions(self.tables)

    def with_conditions(self, tables: Iterable[Table]) -> str:
        """Some tables, and under which conditions they came about."""
        made = self.conditions
        where = f"{made['cpu']}, {made['cores']} cores, {made['threads']} threads of torch {made['torch']}"
        when = f"load {made['load_1_min']}, commit {made['commit']}"
        words = filter(None, (f"python -m benchmarks.{self.benchmark}", self.part, self.options, "--write"))
        return "\n\n".join([*map(str, tables), f"`{' '.join(words)}`: {where}, {when}."])

    def keep(self) -> None:
        (RESULTS / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1, default=str) + "\n")


def kept() -> list[Report]:
    return [Report.read(path) for path in sorted(RESULTS.glob("*.json"))]


def shown(name: str, of_one: Callable[[Report], str] = str) -> str:
    """What stands in a section: the report, or those of all processors, each under its own."""
    found = [report for report in kept() if report.section == name]
    if len(found) == 1:
        return of_one(found[0])
    return "\n\n".join(f"**{report.processor}**\n\n{of_one(report)}" for report in found)


def publish(name: str, for_readme: Callable[[Report], str] | None = None) -> None:
    """Put what was kept into the page and the README, where they have marks for it.

    Of a report without marks the page tells in a row, which a person writes.
    """
    if section(PAGE.read_text(), name) is not None:
        write_section(PAGE, name, shown(name))
    if for_readme is not None:
        write_section(README, name, shown(name, for_readme))


def write_section(path: Path, name: str, text: str) -> None:
    """Put `text` between the marks of `name` in a page. Raises ValueError for a page without them."""
    path.write_text(with_section(path.read_text(), name, text))


def with_section(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of `name`. Raises ValueError for a page without them."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = page.partition(opening)
    _, ended, after = rest.partition(closing)
    if not (found and ended):
        raise ValueError(f"the page has no {opening} and {closing}. Fix: put both where the tables belong")
    return f"{before}{opening}\n{text}\n{closing}{after}"


def section(page: str, name: str) -> str | None:
    """What stands between the marks of `name`; None for a page without them."""
    _, found, rest = page.partition(f"<!-- {name} -->\n")
    text, ended, _ = rest.partition(f"\n<!-- /{name} -->")
    return text if found and ended else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Print reports that were kept.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="else all")
    parser.add_argument("--write", action="store_true", help="put their tables into the page")
    given = parser.parse_args()
    for name in given.names or dict.fromkeys(report.section for report in kept()):
        print(f"{name}\n\n{shown(name)}\n")
        if given.write:
            publish(name)


if __name__ == "__main__":
    main()
