"""Connections that break because of a call, as when Redis closes one that sends too long an argument."""

from redis import Redis
from redis.exceptions import ConnectionError, RedisError

#: No limit of Redis on the length of an argument can be set as low as this.
LARGE_BYTES = 65_536

#: If Redis answers other calls, this many broken connections are no accident.
MAX_BREAKS = 4


class Breaks:
    """Counts the connections broken by one repeated call with an argument of LARGE_BYTES or more."""

    def __init__(self) -> None:
        self.num = 0

    @property
    def are_too_many(self) -> bool:
        """Whether the call itself breaks the connections."""
        return self.num >= MAX_BREAKS

    def note(self, redis: Redis, error: RedisError) -> None:
        """Count a failure of the call if it was a broken connection, and Redis answers right after it."""
        self.num += isinstance(error, ConnectionError) and _is_there(redis)


def _is_there(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False
