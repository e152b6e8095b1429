"""How often Redis has refused something."""

from redis import Redis


def num_errors(redis: Redis, code: str) -> int:
    """Errors of this code, such as OOM, since the last CONFIG RESETSTAT."""
    return int(redis.info("errorstats").get(f"errorstat_{code}", {"count": 0})["count"])
