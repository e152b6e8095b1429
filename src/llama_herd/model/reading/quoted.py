"""Quotation of a file's value in an error: enough to find it, and no more of its junk."""

MAX_CHARS = 60


def quoted(value: object) -> str:
    """`value` as Python would write it, cut to 60 characters."""
    shown = repr(value)
    return shown if len(shown) <= MAX_CHARS else f"{shown[:MAX_CHARS]}..."
