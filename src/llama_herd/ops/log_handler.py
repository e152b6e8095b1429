"""What writes the lines of the log, for workers and gateways alike."""

import logging
import sys
from logging.handlers import WatchedFileHandler
from select import select

#: How long a line waits for somebody who reads what stands in the pipe or on the terminal already.
PATIENCE_S = 1.0


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error. Where nobody reads that, no thread waits long: lines are lost and counted."""

    _num_lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_room(0.0 if self._num_lost else PATIENCE_S):
            self._num_lost += 1
            return
        if self._num_lost:
            lost = _lost("nobody read them", self._num_lost)
            self._num_lost = 0
            super().emit(lost)
        super().emit(record)

    def _has_room(self, wait_s: float) -> bool:
        try:
            return bool(select([], [self.stream], [], wait_s)[1])
        except (OSError, ValueError, TypeError):  # closed, or no file
            return True


class LogFile(WatchedFileHandler):
    """Writes to a file, which may be rotated. No thread ends by a full disk: lines are lost and counted."""

    _num_lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._num_lost:
                super().emit(_lost("they could not be written", self._num_lost))
                self._num_lost = 0
            super().emit(record)
        except OSError:  # also of a file that cannot be opened anew
            self._num_lost += 1

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            raise
        super().handleError(record)


def _lost(why: str, num: int) -> logging.LogRecord:
    told = "lines of the log are lost, since %s: %d"
    return logging.LogRecord(__name__, logging.WARNING, "", 0, told, (why, num), None)
