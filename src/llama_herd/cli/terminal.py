"""A person's terminal: text that comes from it, text that may go to it, and tables."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from unicodedata import category

from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

#: Width of a table that goes to a file or a pipe: wide enough to cut off nothing.
FILE_WIDTH = 200

#: A book of a thousand pages has 3 MB.
MAX_STDIN_BYTES = 64 << 20

#: Unicode's categories of characters that move the cursor, end lines, turn the text's direction, or hide.
UNSEEN = ("Cc", "Cf", "Zl", "Zp")
#: Those of them that texts are made of: emoji and several scripts join and separate letters by the last two.
PLAIN = "\t\n\u200c\u200d"


class _Shown(dict[int, int | None]):
    """What `str.translate` makes of each character: itself, or nothing. It finds out once for each."""

    def __missing__(self, code: int) -> int | None:
        is_unseen = category(chr(code)) in UNSEEN and chr(code) not in PLAIN
        self[code] = found = None if is_unseen else code
        return found


_SHOWN = _Shown()


def harmless(text: str) -> str:
    """`text` without its control and format characters; tabs and line feeds stay."""
    return text.translate(_SHOWN)


def say(line: str) -> None:
    """Tell a person something beside what a command prints."""
    print(f"herd: {harmless(line)}", file=sys.stderr, flush=True)


def show(text: str, *, end: str = "\n") -> None:
    """Print text, as it is where a file or a program reads it, and without what is unseen on a terminal."""
    print(harmless(text) if sys.stdout.isatty() else text, end=end, flush=True)


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
