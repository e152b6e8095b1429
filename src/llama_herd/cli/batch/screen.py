"""Shows a batch while it runs, and at its end: as a bar, lines, or JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn
from rich.text import Text

from llama_herd.cli.terminal import harmless, in_notebook, show
from llama_herd.counted import counted
from llama_herd.tasks.client.batch.batch_progress import Percentiles
from llama_herd.tasks.protocol.batch_status import BatchStatus


@dataclass(frozen=True)
class Summary:
    """The last status, and facts that are known only at the end.

    prefix_cache_hits: prompt tokens that the workers found in their caches; None if no worker is up.
    failures: where the failed rows are, and why most of them failed; empty if none has.
    """

    status: BatchStatus
    ttft: Percentiles
    prefix_cache_hits: int | None
    failures: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.status.model_dump(exclude={"beat_ms"}),
            "ttft_p50_s": self.ttft.p50_s,
            "ttft_p95_s": self.ttft.p95_s,
            "prefix_cache_hits": self.prefix_cache_hits,
            "failures": self.failures,
        }

    def lines(self) -> Sequence[str]:
        """The summary for people, a fact a line."""
        status = self.status
        done = counted(status.num_done, "row")
        rows = f"{done} done, {status.num_failed:,} failed in {_duration(status.elapsed_s)}"
        if status.num_before:
            rows += f" ({status.num_before:,} of them before this start)"
        tokens = f"{status.prompt_tokens:,} in, {status.completion_tokens:,} out"
        speed = f"{status.rows_per_s:,.1f} rows/s, {status.tokens_per_s:,.0f} tokens/s"
        pairs = {"rows": rows, "tokens": tokens, "speed": speed}
        if self.failures:
            pairs["failed rows"] = self.failures
        if self.ttft.p50_s is not None:
            pairs["first token"] = f"p50 {self.ttft.p50_s:.2f} s, p95 {self.ttft.p95_s:.2f} s"
        if (hits := self.prefix_cache_hits) is not None:
            pairs["prefix cache"] = f"{counted(hits, 'prompt token')} found, by the workers' last reports"
        return [f"{name:<13}{value}" for name, value in pairs.items()]


def progress_line(status: BatchStatus) -> str:
    """A batch's status in one line."""
    num_finished = status.num_done + status.num_failed
    rows = counted(status.num_rows or num_finished, "row")
    if status.num_rows:
        rows = f"{num_finished:,} of {rows}"
    parts = [
        f"{rows}, {status.num_failed:,} failed, {status.num_under_way:,} under way",
        f"{status.rows_per_s:,.1f} rows/s, {status.tokens_per_s:,.0f} tokens/s",
    ]
    if status.left_s is not None and status.is_running:
        parts.append(f"{_duration(status.left_s)} left")
    if status.unserved and status.is_running:
        parts.append(f"no worker serves {status.unserved}")
    return "; ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


#: How often a line is written if the output is not a terminal.
LINE_S = 10.0


class BatchScreen:
    """Shows a batch within its block: by a line now and then, for files and pipes."""

    def __init__(self) -> None:
        self._next_s = monotonic() + LINE_S

    def show(self, status: BatchStatus) -> None:
        """Show the status; called about once a second."""
        if monotonic() >= self._next_s:
            show(progress_line(status))
            self._next_s = monotonic() + LINE_S

    def say(self, text: str) -> None:
        """Show a message."""
        show(text)

    def pause(self) -> None:
        """Free the terminal for other output."""

    def show_summary(self, summary: Summary) -> None:
        """Show the summary of the batch that has ended."""
        self.pause()
        self.say("\n".join(summary.lines()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()


class JsonScreen(BatchScreen):
    """Each status, each message and the summary as a line of JSON; `event` names the kind."""

    def show(self, status: BatchStatus) -> None:
        _print_event("progress", **status.model_dump(exclude={"beat_ms"}), left_s=status.left_s)

    def say(self, text: str) -> None:
        _print_event("notice", text=text)

    def show_summary(self, summary: Summary) -> None:
        _print_event("summary", **summary.to_dict())


class LineScreen(BatchScreen):
    """One line, over which the next one is written: for notebooks."""

    def __init__(self) -> None:
        self._num_shown = 0

    def show(self, status: BatchStatus) -> None:
        num_finished = status.num_done + status.num_failed
        share = f"{num_finished / status.num_rows:.0%} - " if status.num_rows else ""
        self._write_over(f"{share}{progress_line(status)}")

    def say(self, text: str) -> None:
        self._write_over(text, end="\n")

    def pause(self) -> None:
        if self._num_shown:
            self._write_over("")

    def _write_over(self, text: str, *, end: str = "") -> None:
        num = self._num_shown
        print((f"\r{'':{num}}\r" if num else "") + harmless(text), end=end, flush=True)
        self._num_shown = 0 if end else len(text)


class BarScreen(BatchScreen):
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

    def __enter__(self) -> Self:
        self._live.start()
        return self


def _print_event(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def open_screen(*, as_json: bool) -> BatchScreen:
    """The screen for this output: a bar on a terminal, a line in a notebook, lines elsewhere."""
    if as_json:
        return JsonScreen()
    if in_notebook() and sys.stdout.isatty():
        return LineScreen()
    console = Console(highlight=False, markup=False)
    return BarScreen(console) if console.is_interactive else BatchScreen()
