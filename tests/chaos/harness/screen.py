"""Shows a run of chaos on a terminal, or as plain lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from tests.chaos.harness.report import ChaosReport
from tests.chaos.harness.run import Progress

#: Most broken laws that are shown; --json shows all.
MAX_SHOWN = 20


@contextmanager
def progress_display(is_quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """How to show a run's progress on standard error: on a terminal in place of the last line."""
    console = Console(stderr=True, highlight=False, quiet=is_quiet)
    if console.is_interactive:
        with console.status("starting", spinner="dots") as status:
            yield lambda progress: status.update(_line(progress))
    else:
        yield lambda progress: console.print(_line(progress))


def _line(progress: Progress) -> str:
    minutes, seconds = divmod(int(progress.seconds), 60)
    return (
        f"{minutes:3}:{seconds:02}  {progress.num_strikes} strikes, {progress.num_jobs} jobs, "
        f"{progress.num_broken} broken laws; {progress.doing}"
    )


def show_report(report: ChaosReport) -> None:
    """Print a table of the faults, the samples, the outcome of the jobs, and the broken laws.

    For a run that was cut short, also print why.
    """
    console = Console(highlight=False)
    console.print(_faults(report), "", _resources(report))
    verdict = report.verdict
    console.print(
        f"\n{len(report.blows)} strikes in {report.seconds / 60:.1f} minutes; {verdict.num_jobs:,} jobs, "
        f"{verdict.num_tokens:,} tokens, {verdict.num_resumed:,} jobs resumed; "
        f"{verdict.num_lost} lost, {verdict.num_repeated} with anything twice, {verdict.num_blamed} given up "
        f"for the deaths of others; ids of {verdict.num_compared} equal to a run without faults"
    )
    if report.cut_short:
        console.print(f"cut short by {report.cut_short}", markup=False)
    for violation in report.violations[:MAX_SHOWN]:
        console.print(f"broken: {violation}", markup=False)
    if not report.violations:
        console.print(
            f"no law broken: with 95 % confidence fewer than {report.bound:.1%} of strikes break one"
        )


def _faults(report: ChaosReport) -> Table:
    table = _table("fault", "strikes", "jobs hit", "recovery p50", "p99", "max")
    for one in report.fault_summaries:
        seconds = ("" if s is None else f"{s:.2f} s" for s in (one.p50_s, one.p99_s, one.max_s))
        table.add_row(one.fault, f"{one.strikes}", f"{one.met}", *seconds)
    return table


def _resources(report: ChaosReport) -> Table:
    table = _table("held by", "first", "median", "last", "most")
    for trend in report.trends:
        values = (trend.first, trend.median, trend.last, trend.most)
        table.add_row(trend.what, *(f"{value:g}" for value in values))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=None, header_style="dim", pad_edge=False)
    for name in others:
        table.add_column(name, justify="right")
    return table
