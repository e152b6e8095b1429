"""A bar on a terminal while a model's weights are laid out."""

import sys
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from llama_herd.live_console import is_live

#: A model that is loaded sooner needs no bar.
DELAY_S = 0.5


class LoadingBar:
    """Shows how many bytes of a model are done; nothing where nobody looks.

    with LoadingBar("llama-3-8b") as bar:
        bar.note(num_done, num_bytes)
    """

    def __init__(self, name: str, console: Console | None = None, delay_s: float = DELAY_S) -> None:
        """On standard error, unless another console is given."""
        self._name = name
        self._console = console or Console(file=sys.stderr)
        self._show_at_s = monotonic() + delay_s
        self._progress: Progress | None = None

    def note(self, num_done: int, num_bytes: int) -> None:
        if self._progress is None and is_live(self._console) and monotonic() >= self._show_at_s:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.add_task(f"loading {self._name}", total=num_bytes)
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
