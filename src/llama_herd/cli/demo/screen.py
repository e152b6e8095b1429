"""The demo as plain lines without control codes, for files, pipes and CI, and its table of figures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llama_herd.cli.demo.demo_job import DemoJob
from llama_herd.cli.demo.next_steps import NextStep
from llama_herd.cli.demo.report import DemoReport, Phase, RoundFigures
from llama_herd.cli.terminal import harmless


class DemoScreen:
    """Shows the demo: one line for each part that has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """The block is one phase."""
        yield

    def show(self, phase: Phase) -> None:
        """Show a phase that has ended."""
        seconds = (f"  {phase.seconds:.2f} s", "dim")
        self._console.print(Text.assemble(f"{phase.name:<8}{phase.detail}", seconds))

    @contextmanager
    def together(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        """The jobs run together in the block."""
        yield
        self._console.print()
        for number, job in enumerate(jobs, start=1):
            text = " ".join(harmless(job.prompt + job.text).split())
            self._print_whole(f"{number} {job.state}, {job.num_tokens} tokens: {text}")

    @contextmanager
    def one_by_one(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        """The jobs run one after the other in the block."""
        yield

    def show_report(self, report: DemoReport, next_steps: Sequence[NextStep]) -> None:
        """Show the results, and what to do next."""
        self._console.print()
        self._console.print(_comparison(report))
        self._console.print("\nTry next:")
        for step in next_steps:
            self._console.print(Text(f"  # {step.purpose}", style="dim"))
            self._print_whole(f"  {step.command}")

    def _print_whole(self, line: str) -> None:
        """Print one line, however long, so that commands can be copied."""
        self._console.print(Text(line), soft_wrap=True)


def _comparison(report: DemoReport) -> Table:
    """The figures side by side: a column for each way to run the jobs."""
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


def _latencies(figures: RoundFigures) -> list[tuple[str, float | None]]:
    return [
        ("first token p50", figures.ttft.p50_s),
        ("first token p95", figures.ttft.p95_s),
        ("between tokens p50", figures.itl.p50_s),
        ("between tokens p95", figures.itl.p95_s),
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f} ms"
