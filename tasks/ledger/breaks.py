"""Connections that break at what was sent, as a Redis closes one at an argument longer than it takes."""

from redis import Redis
from redis.exceptions import ConnectionError, RedisError

#: A Redis may be set to take no argument of a megabyte or more, but none of its limits can be as low as this.
LARGE_BYTES = 65_536

#: So many broken connections to a Redis that answers otherwise are no accident.
MAX_BREAKS = 4


class Breaks:
    """Of one call that is made again and again, with an argument of LARGE_BYTES or more."""

    def __init__(self) -> None:
        self.num = 0

    @property
    def are_too_many(self) -> bool:
        """Whether the call is what breaks them."""
        return self.num >= MAX_BREAKS

    def note(self, redis: Redis, error: RedisError) -> None:
        """Count a failure of the call, if it was a broken connection and Redis answers right after."""
        self.num += isinstance(error, ConnectionError) and _is_there(redis)


def _is_there(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False
