"""A Redis with a replica, and a Sentinel that promotes the replica once the primary is gone."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.errors import RedisUnavailable
from llama_herd.local.redis_server import EmbeddedRedis, find_server

MASTER = "mymaster"

#: More than the second between two pings: a primary that was just promoted is no dead one.
DOWN_AFTER_MS, FAILOVER_TIMEOUT_MS = 2000, 4000

#: Longest time until a replica follows, or is promoted.
PATIENCE_S = 60.0

#: Redis' setting of how long a primary waits for more replicas before it sends its data: 5 s.
SYNC_DELAY = "repl-diskless-sync-delay"

#: How long a replica gets to say that it has all.
ACK_MS = 100

POLL_S = 0.02


class Replica(EmbeddedRedis):
    """Follows another server on this machine."""

    def __init__(self, primary: EmbeddedRedis) -> None:
        super().__init__()
        self._primary_port = primary.port

    def _command(self) -> list[str]:
        following = ("--replicaof", "127.0.0.1", str(self._primary_port))
        return [*super()._command(), *following, f"--{SYNC_DELAY}", "0"]


class Sentinel(EmbeddedRedis):
    """Watches a Redis on this machine; alone, it decides alone."""

    def __init__(self, primary: EmbeddedRedis) -> None:
        super().__init__()
        self._primary_port = primary.port

    def _command(self) -> list[str]:
        path = self._folder / "sentinel.conf"
        path.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self._primary_port} 1\n"
            f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {MASTER} {FAILOVER_TIMEOUT_MS}\n"
        )
        return [find_server(), str(path), "--sentinel"]


class WatchedRedis:
    """Gives a running server a replica and a Sentinel; `url` asks the Sentinel.

    with EmbeddedRedis() as primary, WatchedRedis(primary) as watched:
        connect(watched.url)
    """

    def __init__(self, primary: EmbeddedRedis) -> None:
        self._primary = primary
        self.replica = Replica(primary)
        self.sentinel = Sentinel(primary)
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return f"sentinel://127.0.0.1:{self.sentinel.port}/0?master={MASTER}"

    @property
    def primary_port(self) -> int:
        """The port of the server that the Sentinel takes for the primary."""
        return int(self._asked()["port"])

    def wait_for_replica(self) -> None:
        """Return once the Sentinel knows a replica that follows the primary. Raises RedisUnavailable."""
        self._wait(self._has_replica, "no replica follows the primary")

    def wait_for_promotion(self) -> None:
        """Return once the replica is the primary. Raises RedisUnavailable."""
        self._wait(lambda: self.primary_port == self.replica.port, "the replica was not promoted")

    def demote(self) -> None:
        """Have the replica take over from a primary that lives on: nobody's connection to that breaks."""
        with Redis(port=self.sentinel.port) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", MASTER)
        self.wait_for_promotion()
        with Redis(port=self._primary.port) as redis:
            redis.replicaof("127.0.0.1", str(self.replica.port))

    def rejoin(self) -> None:
        """Start the old primary again, to follow the new one; a Sentinel would see to that later."""
        self._primary.start()
        with Redis(port=self._primary.port) as redis:
            redis.replicaof("127.0.0.1", str(self.primary_port))
        self.wait_for_replica()

    def _keep_awake(self) -> None:
        """A Sentinel that a busy machine has held up for two seconds would do nothing for thirty."""
        with Redis(port=self.sentinel.port) as sentinel, suppress(ResponseError):  # before Redis 7
            sentinel.execute_command("SENTINEL", "DEBUG", "tilt-trigger", 600_000)

    def _has_replica(self) -> bool:
        with Redis(port=self.primary_port) as primary:
            primary.publish("herd", "")  # goes to replicas, too
            return primary.wait(1, ACK_MS) > 0 and int(self._asked()["num-slaves"]) > 0

    def _asked(self) -> Any:
        with Redis(port=self.sentinel.port) as sentinel:
            return sentinel.sentinel_masters()[MASTER]  # redis-py 6 cannot ask for one

    def _wait(self, is_true: Callable[[], bool], complaint: str) -> None:
        until_s = monotonic() + PATIENCE_S
        while not is_true():
            if monotonic() >= until_s:
                raise RedisUnavailable(f"{complaint} within {PATIENCE_S:.0f} s")
            sleep(POLL_S)

    def __enter__(self) -> Self:
        with Redis(port=self._primary.port) as redis:
            redis.config_set(SYNC_DELAY, 0)
        with ExitStack() as stack:
            stack.enter_context(self.replica)
            stack.enter_context(self.sentinel)
            self._keep_awake()
            self.wait_for_replica()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
