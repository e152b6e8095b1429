"""A person's terminal: text that comes from it, text that may go to it, and the streams between.

These may be full, closed, or unable to encode a character.
"""

import codecs
import io
import locale
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unicodedata import category

from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

#: How a command is asked what it is, as typer takes it.
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

#: A book of a thousand pages has 3 MB.
MAX_STDIN_BYTES = 64 << 20

#: A line to a person is no longer: what it repeats of an argument may be.
MAX_SAID_CHARS = 4000

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
    """Tell a person something beside what a command prints, in one line, whatever of others it repeats."""
    shown = harmless(line).replace("\n", " ")
    if len(shown) > MAX_SAID_CHARS:
        shown = f"{shown[: MAX_SAID_CHARS // 2]} ... {shown[-MAX_SAID_CHARS // 2 :]}"
    print(f"herd: {shown}", file=sys.stderr, flush=True)


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


def in_notebook() -> bool:
    """Whether this is a notebook's `!command`: its terminal shows carriage returns, but moves no cursor."""
    # Jupyter sets the first for its kernels, and they themselves the second, wherever they are started.
    return "JPY_PARENT_PID" in os.environ or "inline" in os.environ.get("MPLBACKEND", "")


def table_console() -> "Console":
    """A console that neither colours nor interprets what it is given."""
    from rich.console import Console

    # A file or a pipe gets tables that are wide enough to cut off nothing.
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)


def utc_text(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time for people, in UTC. A foreign value may be outside every calendar: ?."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "?"


_STDIN, _STDOUT, _STDERR = 0, 1, 2

EXIT_OUTPUT_LOST = 1


class OutputLost(OSError):
    """Standard output cannot be written."""


class _Output(io.FileIO):
    """Standard output, with errors of its own type. A reader that has left is not an error."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputLost(error.strerror) from None


class _Complaints(io.FileIO):
    """Standard error. What cannot be written there is dropped: what it is about goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def speak_utf8() -> None:
    """Restart this process in UTF-8 if the locale is ASCII, which garbles arguments and texts."""
    is_ascii = codecs.lookup(locale.getencoding()).name == "ascii"
    if is_ascii and not sys.flags.utf8_mode and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


@contextmanager
def safe_output() -> Iterator[None]:
    """Write what the block prints; if that fails, say so in one line and exit with 1.

    Characters that the output cannot encode are shown as their codes. A log or a complaint that cannot be
    written ends nothing.
    """
    _fill_gaps()
    raw = io.BufferedWriter(_Output(_STDOUT, "w", closefd=False))
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    sys.stdout = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=raw.isatty())
    complaints = io.BufferedWriter(_Complaints(_STDERR, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(complaints, sys.stderr.encoding, "backslashreplace", line_buffering=True)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        _drop_output()
        sys.exit(EXIT_OUTPUT_LOST)
    except OutputLost as error:
        _drop_output()
        print(f"herd: cannot write to standard output: {error}", file=sys.stderr)
        sys.exit(EXIT_OUTPUT_LOST)


def _fill_gaps() -> None:
    """Open streams that a shell has closed: a connection would get the number, and Redis what we print."""
    for number, flags in ((_STDIN, os.O_RDONLY), (_STDOUT, os.O_RDONLY), (_STDERR, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number. Standard output is opened for reading, so writes to it fail.
            os.set_inheritable(os.open(os.devnull, flags), True)
    if sys.stdin is None:
        sys.stdin = open(_STDIN, closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(_STDERR, "w", closefd=False)  # noqa: SIM115


def _drop_output() -> None:
    """Drop unwritten output: Python would try to write it again at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
