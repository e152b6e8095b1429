"""A command's standard streams, also when they are full, closed, or cannot encode a character."""

import codecs
import io
import locale
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

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


def speak_utf8() -> None:
    """Restart this process in UTF-8 if the locale is ASCII, which garbles arguments and texts."""
    is_ascii = codecs.lookup(locale.getencoding()).name == "ascii"
    if is_ascii and not sys.flags.utf8_mode and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


@contextmanager
def safe_output() -> Iterator[None]:
    """Write what the block prints; if that fails, say so in one line and exit with 1.

    Characters that the output cannot encode are shown as their codes.
    """
    _fill_gaps()
    raw = io.BufferedWriter(_Output(_STDOUT, "w", closefd=False))
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    sys.stdout = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=raw.isatty())
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
        with suppress(OSError):
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
