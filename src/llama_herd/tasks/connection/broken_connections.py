"""Connections that break because of a call, as when Redis closes one that sends too long an argument."""

from redis import Redis
from redis.exceptions import ConnectionError, RedisError

#: No limit of Redis on the length of an argument can be set as low as this.
LARGE_BYTES = 65_536

#: If Redis answers other calls, this many broken connections are no accident.
MAX_BREAKS = 4


class BrokenConnections:
    """Counts the connections that one repeated call with an argument of LARGE_BYTES or more has broken."""

    def __init__(self) -> None:
        self.num = 0

    @property
    def are_no_accident(self) -> bool:
        """Whether the call itself breaks the connections."""
        return self.num >= MAX_BREAKS

    def note(self, redis: Redis, error: RedisError) -> None:
        """Count a failure of the call if it was a broken connection, and Redis answers right after it."""
        self.num += isinstance(error, ConnectionError) and _answers(redis)


def _answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False
