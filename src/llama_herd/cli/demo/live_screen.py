"""The demo on a terminal: a spinner while it starts, and a live picture of its jobs side by side."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llama_herd.cli.demo.demo_job import DemoJob
from llama_herd.cli.demo.screen import DemoScreen
from llama_herd.cli.terminal import harmless

FRAMES_PER_S = 12


#: Colours of the states; the rest of the panel has none.
STYLES = {"queued": "dim", "prefill": "yellow", "decode": "cyan", "done": "green", "failed": "red"}

#: Columns besides the text: number, state, tokens and what separates them.
NUM_OTHER_COLUMNS = 18

#: Lines besides the jobs: the phases, the footer, empty ones.
NUM_OTHER_LINES = 8

#: Most lines of a job's text that are shown.
MAX_LINES = 3


class LiveDemoScreen(DemoScreen):
    """As `DemoScreen`, with a spinner while something starts and a panel while the jobs run."""

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        with self._console.status(name, spinner="dots", spinner_style="dim"):
            yield

    @contextmanager
    def together(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        self._console.print()
        with Live(JobPanel(jobs), console=self._console, refresh_per_second=FRAMES_PER_S):
            yield

    @contextmanager
    def one_by_one(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        def count() -> Text:
            num_done = sum(job.end is not None for job in jobs)
            return Text(f"the same jobs one at a time, to compare: {num_done} of {len(jobs)}", "dim")

        with Live(
            get_renderable=count, console=self._console, refresh_per_second=FRAMES_PER_S, transient=True
        ):
            yield


class JobPanel:
    """Draws the jobs as they are now. Its height never changes, so nothing jumps or flickers."""

    def __init__(self, jobs: Sequence[DemoJob]) -> None:
        self._jobs = jobs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        num_lines = max(1, min(MAX_LINES, (console.height - NUM_OTHER_LINES) // len(self._jobs)))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=1)
        table.add_column(width=7)
        table.add_column(width=4, justify="right")
        table.add_column()
        for number, job in enumerate(self._jobs, start=1):
            text = _last_lines(console, job, options.max_width - NUM_OTHER_COLUMNS, num_lines)
            table.add_row(str(number), Text(job.state, STYLES[job.state]), str(job.num_tokens), text)
        yield table
        yield Text()
        yield Text(self._footer(), "dim")

    def _footer(self) -> str:
        num_tokens = sum(job.num_tokens for job in self._jobs)
        num_running = sum(job.is_running for job in self._jobs)
        num_queued = sum(job.state == "queued" for job in self._jobs)
        rate = num_tokens / self._elapsed_s if num_tokens else 0.0
        return (
            f"{rate:,.0f} tokens/s   {num_running} in the batch   {num_queued} queued   {num_tokens:,} tokens"
        )

    @property
    def _elapsed_s(self) -> float:
        """From the first submission to the newest token."""
        newest_s = max(job.token_times_s[-1] for job in self._jobs if job.token_times_s)
        return newest_s - min(job.submitted_s for job in self._jobs if job.submitted_s)


def _last_lines(console: Console, job: DemoJob, width: int, num_lines: int) -> Text:
    """The end of prompt and text in exactly `num_lines` lines."""
    text = Text.assemble((_one_line(job.prompt), "dim"), _one_line(job.text))
    lines = text.wrap(console, max(1, width))[-num_lines:]
    lines += [Text()] * (num_lines - len(lines))
    return Text("\n").join(lines)


def _one_line(text: str) -> str:
    return harmless(text.translate({ord("\n"): " ", ord("\t"): " "}))
