"""A bar on a terminal while a worker starts: over a model's bytes, or the graphs that it captures."""

import sys
from time import monotonic
from types import TracebackType
from typing import Literal, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

#: A model that is loaded sooner needs no bar.
DELAY_S = 0.5


class LoadingBar:
    """Shows how many bytes or things are done; nothing where nobody looks.

    with LoadingBar("loading llama-3-8b") as bar:
        bar.note(num_done, num_bytes)
    """

    def __init__(
        self,
        title: str,
        unit: Literal["bytes", "graphs"] = "bytes",
        console: Console | None = None,
        delay_s: float = DELAY_S,
    ) -> None:
        """On standard error, unless another console is given."""
        self._title = title
        self._count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        self._console = console or Console(file=sys.stderr)
        self._show_at_s = monotonic() + delay_s
        self._progress: Progress | None = None

    def note(self, num_done: int, num_all: int) -> None:
        if self._progress is None and self._console.is_interactive and monotonic() >= self._show_at_s:
            columns = (TextColumn("{task.description}"), BarColumn(), self._count, TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.add_task(self._title, total=num_all)
            self._progress.start()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=num_done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
