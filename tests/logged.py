"""What is told to the loggers of the standard library while a test runs.

pytest's own caplog listens in all tests, half a millisecond of each.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        """All of it, tracebacks included."""
        return "\n".join(map(self.format, self.records))

    @property
    def errors(self) -> list[logging.LogRecord]:
        return [record for record in self.records if record.levelno >= logging.ERROR]


@contextmanager
def listening(level: int = logging.WARNING) -> Iterator[Logged]:
    """Hear what is told from this level on."""
    root, logged = logging.getLogger(), Logged()
    level_before = root.level
    root.addHandler(logged)
    root.setLevel(level)
    try:
        yield logged
    finally:
        root.setLevel(level_before)
        root.removeHandler(logged)
