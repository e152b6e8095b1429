"""What a person sees of a job: its events on standard output, notes beside them, and the exit code."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from llama_herd.cli.terminal import harmless, say, show
from llama_herd.error_code import known_code
from llama_herd.errors import HerdError
from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.client.status_texts import place_note
from llama_herd.tasks.protocol.events import GOOD_ENDS, End, Event, Token
from llama_herd.tasks.protocol.result import Result

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client


class Transcript:
    """Writes a job's events, and keeps the final one.

    As text that grows, as a line of JSON each, or as one object at the end. Of the texts of several outputs
    the first is written as it grows. The others follow at the end, each below a line.
    """

    def __init__(self, form: Literal["text", "events", "result"]) -> None:
        self._form = form
        self._events: list[Event] = []

    @property
    def end(self) -> End | None:
        """The final event, once it has come."""
        event = self._events[-1] if self._events else None
        return event if isinstance(event, End) else None

    @property
    def exit_code(self) -> int:
        """0 when the job ended by itself or at its length, 2 when its input was bad, else 1."""
        if self.end is None or self.end.finish_reason in GOOD_ENDS:
            return 0
        code = known_code(self.end.error.code) if self.end.error else None
        return 2 if code is not None and code.is_bad_input else 1

    def follow(self, events: Iterable[Event | Queued]) -> None:
        """Write events as they come, up to the end. Before, a terminal is told where the job stands."""
        for event in events:
            if isinstance(event, Queued):
                self._show_note(f"herd: {place_note(event.position, event.estimated_wait_s)}")
                continue
            if not self._events:
                self._show_note("")
            self._events.append(event)
            if self._form == "events":
                show(event.to_json())
            elif self._form == "text" and isinstance(event, Token) and not event.choice:
                show(event.text, end="")
        if self.end is not None:
            self._finish(self.end)

    def _finish(self, end: End) -> None:
        if self._form == "result":
            show(Result.from_events(self._events).model_dump_json())
        elif self._form == "text":
            print()
            for choice in (Result.from_events(self._events).choices or ())[1:]:
                print(f"\n--- {choice.index + 1:d} ---")
                show(choice.text)
        if self.exit_code and self._form != "events":
            why = (end.error.code, end.error.message) if end.error else (end.finish_reason,)
            say(": ".join((f"job {end.job} ended", *filter(None, why))))

    def _show_note(self, note: str) -> None:
        """Show a line on standard error in place of the last one."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{harmless(note)}", end="", file=sys.stderr, flush=True)


def tell_of_queue(client: "Client", job_id: str) -> None:
    """Say on standard error what is wrong with the queue of a job, such as that no worker serves its model.

    Nothing is said of a job that does not exist yet, and nothing to producers and subscribers, who may not
    look at queues.
    """
    with suppress(HerdError):
        status = client.job(job_id)
        if status.note:
            say(f"job {job_id}: {status.note}")
