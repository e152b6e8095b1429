"""A person's terminal: text that comes from it, text that may go to it, and tables."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

#: Width of a table that goes to a file or a pipe: wide enough to cut off nothing.
FILE_WIDTH = 200

#: A book of a thousand pages has 3 MB.
MAX_STDIN_BYTES = 64 << 20

#: Control characters except tab and line feed: they could move the cursor, or do worse.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def harmless(text: str) -> str:
    """`text` without its control characters; tabs and line feeds stay."""
    return text.translate(_CONTROLS)


def text_or_stdin(text: str) -> str:
    """`text`, or for - the text of standard input without its last line feed. Raises BadInput."""
    if text != "-":
        return checked_text(text, "the text")
    try:
        content = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
        if len(content) > MAX_STDIN_BYTES:
            raise BadInput(
                f"standard input is longer than {MAX_STDIN_BYTES:,} bytes. Fix: send a shorter text"
            )
        return content.decode().removesuffix("\n")
    except OSError as error:
        raise BadInput(f"standard input cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 text: byte {error.start} is invalid") from None


def checked_text(text: str, name: str) -> str:
    """`text` from the command line. Raises BadInput, with its name, if its bytes were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{name} is not UTF-8 text: character {error.start} is invalid") from None
    return text


def table_console() -> "Console":
    """A console that neither colours nor interprets what it is given."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False, markup=False)


def utc_text(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time for people, in UTC. A foreign value may be outside every calendar: ?."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "?"
