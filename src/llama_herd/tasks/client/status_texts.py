"""Texts for people about queues, places in them, and durations."""

from collections.abc import Sequence

from llama_herd.tasks.client.tenant_status import QueueStatus
from llama_herd.tasks.protocol.close_names import close_models, did_you_mean

#: In the place of a number that is not known.
UNKNOWN_TEXT = "-"

#: Most names of models in one line.
MAX_NAMES = 20


def unserved_note(model: str, unserved_s: float | None, served_models: Sequence[str]) -> str:
    """Say that nobody serves a model, and which models are served."""
    span = "" if unserved_s is None else f" for {duration_text(unserved_s)}"
    meant = did_you_mean(close_models(model, served_models)) or "."
    return f"no worker serves {model}{span}: its jobs wait{meant} Served are: {some_names(served_models)}"


def some_names(names: Sequence[str]) -> str:
    """The names, or the first of many, and how many more there are."""
    rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return (", ".join(names[:MAX_NAMES]) or "none") + rest


def held_note(queue: QueueStatus, now_ms: int) -> str:
    """Say that the jobs of a queue wait since somebody wants it, and how that ends; empty if it is not so."""
    if queue.is_paused:
        until_ms = queue.paused_until_ms
        span = "" if until_ms is None else f" for another {duration_text(max(0, until_ms - now_ms) / 1000)}"
        return f"{queue.model} is paused{span}: its jobs wait. herd resume --model {queue.model} ends that"
    if queue.workers and queue.drained == queue.workers:
        return f"all workers of {queue.model} are drained: its jobs wait. herd drain --undo WORKER ends that"
    return ""


def place_note(position: int, wait_s: float | None) -> str:
    """A text for a job's place in the queue, and for how long, if that is known."""
    wait = "" if wait_s is None else f", about {duration_text(wait_s)}"
    return f"{position:,} in the queue{wait}"


def duration_text(seconds: float | None) -> str:
    """A time in at most nine characters, such as 3 h 2 m."""
    if seconds is None:
        return UNKNOWN_TEXT
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h" if days < 100 else f"{days} d"
    return f"{hours} h {minutes % 60} m" if hours else f"{minutes} m {int(seconds) % 60} s"
