"""A redis-server that can be killed, frozen, filled, and made to lose data."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from tests.chaos.harness.patience import wait_until

#: Bytes of maxmemory, less than redis-server itself needs: it accepts no more data.
NO_MEMORY = 512 << 10

#: Most bytes that the log may grow by before it is rewritten: each start reads it again, in a second or two.
MAX_ADDED_BYTES = 64 << 20


class FragileRedis(EmbeddedRedis):
    """A redis-server with an append-only file that is written out each second, as in production."""

    #: Variables of its environment, as a shell takes them.
    variables = ""

    def __init__(self) -> None:
        super().__init__(appendonly=True)
        self._rewritten_bytes = 0

    def rewrite_log(self) -> None:
        """Have Redis rewrite its log if it has grown much; return when that is done.

        Redis itself would not do it, as it forgets at each start how long the log was, or would do it amid a
        fault.
        """
        with Redis.from_url(self.url) as redis:
            if _log_bytes(redis) < self._rewritten_bytes + MAX_ADDED_BYTES:
                return
            redis.bgrewriteaof()
            wait_until(lambda: not _persistence(redis)["aof_rewrite_in_progress"], "log rewritten")
            self._rewritten_bytes = _log_bytes(redis)

    def wait_until_read(self) -> None:
        """Return when it has read its file: before that it answers, but refuses whoever starts."""
        with Redis.from_url(self.url) as redis:
            wait_until(lambda: not _persistence(redis)["loading"], "its file read")

    @contextmanager
    def away(self, seconds: float = 0.0) -> Iterator[None]:
        """kill -9; nothing listens within the block; then it is started again with its file."""
        self.stop()
        try:
            sleep(seconds)
            yield
        finally:
            self.start()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Connections stay open, but nothing is answered. Redis' clock goes on."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def full(self) -> Iterator[None]:
        """At maxmemory: what is new is refused, and what Celery writes."""
        with Redis.from_url(self.url) as redis:
            redis.config_set("maxmemory", NO_MEMORY)
            try:
                yield
            finally:
                redis.config_set("maxmemory", 0)

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """The append-only file cannot grow; writes are refused once Redis has noticed."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (self.log.stat().st_size, hard))
        try:
            yield
        finally:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard, hard))

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Writes within the block are lost, as those of the last second or two may be in a power failure."""
        kept_bytes = self.log.stat().st_size
        yield
        with self.away():
            os.truncate(self.log, kept_bytes)

    @property
    def log(self) -> Path:
        """The file that it appends to: the youngest of several, or before Redis 7 the one there is."""
        logs = self._folder.glob("appendonlydir/*.incr.aof")
        parts = sorted(logs, key=lambda path: int(path.name.split(".")[2]))
        return parts[-1] if parts else self._folder / "appendonly.aof"

    def _command(self) -> list[str]:
        """Started by a shell, which makes writes beyond a file's limit fail instead of ending the process."""
        command = [*super()._command(), "--auto-aof-rewrite-percentage", "0"]
        return ["sh", "-c", f'trap "" XFSZ; {self.variables} exec "$@"', "sh", *command]


def _log_bytes(redis: Redis) -> int:
    return int(_persistence(redis)["aof_current_size"])


def _persistence(redis: Any) -> dict[str, Any]:
    found: dict[str, Any] = redis.info("persistence")
    return found
