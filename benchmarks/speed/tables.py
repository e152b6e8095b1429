"""The report for readers: a table a file, with what each contender reached and how we stand."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.report import Cell as Figure, Report, Row, Table, figure, number
from benchmarks.speed.contender import OURS
from benchmarks.speed.rounds import Outcome

#: The columns behind the cells.
FACTS = ("first token s", "peak GB", "note")
FLOOR, BEST = "percent of the floor", "times the best peer"
#: More than people compare at a glance are on the page of all reports.
README_FILES = 4


def file_table(name: str, floors: Mapping[str, float], outcomes: Sequence[Outcome]) -> Table:
    """Tokens a second; behind the contenders how we stand."""
    rows: list[Row] = []
    for one in outcomes:
        speeds: dict[str, Figure] = {cell: one.tokens_per_s.get(cell, "-") for cell in floors}
        peak: Figure = one.peak_bytes / 1e9 if one.peak_bytes else "-"
        facts: dict[str, Figure] = dict(zip(FACTS, (one.start_s or "-", peak, one.note), strict=True))
        rows.append({name: one.contender, **speeds, **facts})
    if not any(row["note"] for row in rows):
        rows = [{head: cell for head, cell in row.items() if head != "note"} for row in rows]
    ours, *peers = rows
    empty: dict[str, Figure] = {head: "" for head in rows[0] if head in FACTS}
    rows.append(
        {name: FLOOR, **{cell: ratio(ours[cell], floor, 100) for cell, floor in floors.items()}, **empty}
    )
    if peers:
        best = {cell: best_speed(outcomes[1:], cell) for cell in floors}
        rows.append({name: BEST, **{cell: ratio(ours[cell], best[cell]) for cell in floors}, **empty})
    return Table(rows, "Tokens a second")


def best_speed(peers: Sequence[Outcome], cell: str) -> float:
    """Tokens a second of the fastest; 0 if none has a figure."""
    return max((number(one.tokens_per_s.get(cell, "-")) for one in peers), default=0.0)


def readme_table(report: Report) -> Table:
    """Ours on the first files, and as a multiple of each peer in its best mode."""
    of_files = [table for table in report.tables if table.title == "Tokens a second"]
    return Table([row for table in of_files[:README_FILES] for row in _of_file(table)])


def _of_file(table: Table) -> Iterator[Row]:
    name, *heads = (head for head in table.head if head not in FACTS)
    cells = [head for head in heads if " at " not in head and head.partition("prefill ")[2] in ("", "512")]
    of = {str(row[name]): row for row in table.rows if row[name] not in (FLOOR, BEST)}
    ours = of.pop(OURS.name)
    yield {"tokens/s": name, **{cell: ours[cell] for cell in cells}}
    for peer in sorted({contender.split(",")[0] for contender in of}):
        modes = [row for contender, row in of.items() if contender.split(",")[0] == peer]
        best = {cell: max(number(mode[cell]) for mode in modes) for cell in cells}
        if any(best.values()):
            yield {"tokens/s": f"× {peer}", **{cell: ratio(ours[cell], best[cell]) for cell in cells}}


def first_token(report: Report) -> str:
    """How soon the first token comes of the largest file in blocks."""
    table = next(table for table in report.tables if table.head[0] == "file")
    blocks = [row for row in table.rows if not str(row["file"]).endswith(("BF16", " F16"))]
    row = max(blocks, key=lambda row: number(row["GB"]))
    name, size_gb, start_s, weights_s, *_ = map(figure, row.values())
    return (
        f"The first token of {name}, {size_gb} GB, comes {start_s} s after the start of the process. Its\n"
        f"weights take {weights_s} s of that."
    )


def ratio(own: Figure, other: float, unit: float = 1) -> str | float:
    return unit * number(own) / other if number(own) and other else "-"
