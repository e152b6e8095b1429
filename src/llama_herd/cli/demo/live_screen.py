"""The demo on a terminal, with live updates."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from llama_herd.cli.demo.panel import Panel
from llama_herd.cli.demo.progress import Progress
from llama_herd.cli.demo.screen import Screen

FRAMES_PER_S = 12


class LiveScreen(Screen):
    """As `Screen`, with a spinner while something starts and a panel while the jobs run."""

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        with self._console.status(name, spinner="dots", spinner_style="dim"):
            yield

    @contextmanager
    def together(self, jobs: Sequence[Progress]) -> Iterator[None]:
        self._console.print()
        with Live(Panel(jobs), console=self._console, refresh_per_second=FRAMES_PER_S):
            yield

    @contextmanager
    def one_by_one(self, jobs: Sequence[Progress]) -> Iterator[None]:
        def count() -> Text:
            num_done = sum(job.end is not None for job in jobs)
            return Text(f"the same jobs one at a time, to compare: {num_done} of {len(jobs)}", "dim")

        with Live(
            get_renderable=count, console=self._console, refresh_per_second=FRAMES_PER_S, transient=True
        ):
            yield
