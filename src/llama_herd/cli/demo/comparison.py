"""The demo's figures side by side: jobs together, and one at a time."""

from rich.table import Table

from llama_herd.cli.demo.figures import Figures
from llama_herd.cli.demo.report import Report


def comparison(report: Report) -> Table:
    """A table with one column for each way to run the jobs."""
    together, alone = report.together.figures, report.one_by_one.figures
    table = Table("", "together", "one by one", "", box=None, header_style="dim", pad_edge=False)
    for column in table.columns[1:3]:
        column.justify = "right"
    table.add_row(
        "tokens/s",
        f"[bold]{together.tokens_per_s:,.0f}[/]",
        f"{alone.tokens_per_s:,.0f}",
        f"x {report.speedup:.1f} by continuous batching",
    )
    for (name, one), (_, other) in zip(_latencies(together), _latencies(alone), strict=True):
        table.add_row(name, _ms(one), _ms(other))
    return table


def _latencies(figures: Figures) -> list[tuple[str, float | None]]:
    return [
        ("first token p50", figures.ttft.p50_s),
        ("first token p95", figures.ttft.p95_s),
        ("between tokens p50", figures.itl.p50_s),
        ("between tokens p95", figures.itl.p95_s),
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f} ms"
