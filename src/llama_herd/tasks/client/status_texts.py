"""Texts for people about queues, places in them, and durations."""

from collections.abc import Sequence

from llama_herd.tasks.protocol.close_names import close_models, did_you_mean

#: In the place of a number that is not known.
UNKNOWN_TEXT = "-"

#: Most names of models in one line.
MAX_NAMES = 20


def unserved_note(model: str, unserved_s: float | None, served_models: Sequence[str]) -> str:
    """Say that nobody serves a model, and which models are served."""
    span = "" if unserved_s is None else f" for {duration_text(unserved_s)}"
    names = ", ".join(served_models[:MAX_NAMES]) or "none"
    rest = f" and {len(served_models) - MAX_NAMES} more" if len(served_models) > MAX_NAMES else ""
    meant = did_you_mean(close_models(model, served_models)) or "."
    return f"no worker serves {model}{span}: its jobs wait{meant} Served are: {names}{rest}"


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
