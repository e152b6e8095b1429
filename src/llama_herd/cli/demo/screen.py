"""The demo as plain lines without control codes, for files, pipes and CI."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from llama_herd.cli.demo.comparison import comparison
from llama_herd.cli.demo.next_steps import NextStep
from llama_herd.cli.demo.progress import Progress
from llama_herd.cli.demo.report import Phase, Report
from llama_herd.cli.terminal import harmless


class Screen:
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
    def together(self, jobs: Sequence[Progress]) -> Iterator[None]:
        """The jobs run together in the block."""
        yield
        self._console.print()
        for number, job in enumerate(jobs, start=1):
            text = " ".join(harmless(job.prompt + job.text).split())
            self._print_whole(f"{number} {job.state}, {job.num_tokens} tokens: {text}")

    @contextmanager
    def one_by_one(self, jobs: Sequence[Progress]) -> Iterator[None]:
        """The jobs run one after the other in the block."""
        yield

    def close(self, report: Report, next_steps: Sequence[NextStep]) -> None:
        """Show the results, and what to do next."""
        self._console.print()
        self._console.print(comparison(report))
        self._console.print("\nTry next:")
        for step in next_steps:
            self._console.print(Text(f"  # {step.purpose}", style="dim"))
            self._print_whole(f"  {step.command}")

    def _print_whole(self, line: str) -> None:
        """Print one line, however long, so that commands can be copied."""
        self._console.print(Text(line), soft_wrap=True)
