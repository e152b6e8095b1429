"""A bar on a terminal while a worker starts: over a model's bytes, or the graphs that it captures."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Literal

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


@contextmanager
def loading_bar(
    title: str,
    unit: Literal["bytes", "graphs"] = "bytes",
    console: Console | None = None,
    delay_s: float = DELAY_S,
) -> Iterator[Callable[[int, int], None]]:
    """Show how many bytes or things are done; nothing where nobody looks.

        with loading_bar("loading llama-3-8b") as note:
            note(num_done, num_bytes)

    On standard error, unless another console is given.
    """
    screen = console or Console(file=sys.stderr)
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task(title, start=False)
    show_at_s = monotonic() + delay_s

    def note(num_done: int, num_all: int) -> None:
        if screen.is_interactive and monotonic() >= show_at_s:
            bar.start()
            bar.start_task(task)
            bar.update(task, total=num_all, completed=num_done)

    try:
        yield note
    finally:
        if bar.live.is_started:
            bar.stop()
