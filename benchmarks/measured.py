"""The page of measurements: each command writes its report as JSON and its tables between its own marks.

Some have marks in the README, too.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "measured.md"
README = ROOT / "README.md"

Report = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table for readers; numbers stand to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    title: str = ""

    def __str__(self) -> str:
        is_number = [not isinstance(cell, str) for cell in self.rows[0]]
        rule = ["---:" if right else "---" for right in is_number]
        rows = [[figure(cell) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (list(self.head), rule, *rows)]
        return "\n".join([*([f"{self.title}:", ""] if self.title else []), *lines])


def run_command(
    measure: Callable[[], Report],
    tables: Callable[[Report], Iterable[Table]],
    about: str,
    for_readme: Callable[[Report], str] | None = None,
) -> None:
    """Measure and print; with --write, keep the report in `benchmarks/results` and the tables in the page.

    `for_readme`: what the README says of it.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the report and the page's tables")
    is_kept = parser.parse_args().write
    report = measure()
    text = for_readers(report, tables(report))
    print(text)
    if is_kept:
        keep(report, text)
        if for_readme is not None:
            write_section(README, report["benchmark"], for_readme(report))


def keep(report: Report, text: str) -> None:
    """Write the report, and the text between the page's marks for it. `schedule` is a part of its name."""
    name = "-".join(filter(None, (report["benchmark"], report.get("schedule"))))
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    write_section(PAGE, name, text)


def for_readers(report: Report, tables: Iterable[Table]) -> str:
    """The tables, and under which conditions they came about.

    `schedule` and `option` are arguments of the command.
    """
    made = report["conditions"]
    where = f"{made['cpu']}, {made['cores']} cores, {made['threads']} threads of torch {made['torch']}"
    when = f"load {made['load_1_min']}, commit {made['commit']}"
    arguments = [report.get("schedule", ""), report.get("option", "")]
    words = ["python -m", f"benchmarks.{report['benchmark']}", *arguments, "--write"]
    return "\n\n".join([*map(str, tables), f"`{' '.join(filter(None, words))}`: {where}, {when}."])


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


def figure(value: str | float) -> str:
    """At least three digits of a number, and all before its point."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
