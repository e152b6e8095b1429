"""Where a picture can be shown in place, and where only lines can follow each other."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def is_live(console: "Console") -> bool:
    """Whether lines on it can be replaced: a terminal that moves its cursor, no file, pipe or log."""
    return console.is_terminal and not console.is_dumb_terminal
