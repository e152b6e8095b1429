"""The console of commands that print a table."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: Width of a table that goes to a file or a pipe: wide enough to cut off nothing.
FILE_WIDTH = 200


def table_console() -> "Console":
    """A console that neither colours nor interprets what it is given."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False, markup=False)
