"""Shows a batch while it runs: as a bar, lines, or JSON."""

import json
from time import monotonic
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn
from rich.text import Text

from llama_herd.cli.batch.summary import Summary, progress_line
from llama_herd.cli.terminal import harmless, show
from llama_herd.tasks.protocol.batch_status import BatchStatus

#: How often a line is written if the output is not a terminal.
LINE_S = 10.0


class BatchScreen(Protocol):
    """Shows a batch within its block."""

    def show(self, status: BatchStatus) -> None:
        """Show the status; called about once a second."""

    def say(self, text: str) -> None:
        """Show a message."""

    def pause(self) -> None:
        """Free the terminal for other output."""

    def show_summary(self, summary: Summary) -> None:
        """Show the summary of the batch that has ended."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_screen(*, as_json: bool) -> BatchScreen:
    """The screen for this output: a bar on a terminal, lines elsewhere."""
    if as_json:
        return JsonScreen()
    console = Console(highlight=False, markup=False)
    return BarScreen(console) if console.is_interactive else LineScreen()


class LineScreen:
    """A line now and then, for files and pipes."""

    def __init__(self) -> None:
        self._next_s = monotonic() + LINE_S

    def show(self, status: BatchStatus) -> None:
        if monotonic() >= self._next_s:
            show(progress_line(status))
            self._next_s = monotonic() + LINE_S

    def say(self, text: str) -> None:
        show(text)

    def pause(self) -> None:
        pass

    def show_summary(self, summary: Summary) -> None:
        show("\n".join(summary.lines()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class JsonScreen(LineScreen):
    """Each status, each message and the summary as a line of JSON; `event` names the kind."""

    def show(self, status: BatchStatus) -> None:
        _print_event("progress", **status.model_dump(exclude={"beat_ms"}), left_s=status.left_s)

    def say(self, text: str) -> None:
        _print_event("notice", text=text)

    def show_summary(self, summary: Summary) -> None:
        _print_event("summary", **summary.to_dict())


class BarScreen:
    """A bar as wide as the terminal, and the figures below it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(BarColumn(bar_width=None), TaskProgressColumn(), expand=True)
        self._rows = self._progress.add_task("rows", total=None)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, status: BatchStatus) -> None:
        num_finished = status.num_done + status.num_failed
        self._progress.update(self._rows, total=status.num_rows or None, completed=num_finished)
        figures = Text("\n").join(map(Text, progress_line(status).split("; ")))
        self._live.update(Group(self._progress, figures), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(harmless(text), soft_wrap=True)

    def pause(self) -> None:
        self._live.stop()

    def show_summary(self, summary: Summary) -> None:
        self._live.stop()
        self._console.print(harmless("\n".join(summary.lines())))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _print_event(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)
