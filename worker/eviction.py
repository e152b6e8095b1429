"""A Redis that may throw away what it has accepted is no place for jobs."""

from redis import Redis
from redis.exceptions import RedisError

from llama_herd.errors import SettingsError


def refuse_eviction(redis: Redis) -> None:
    """Raise SettingsError when Redis, once full, drops keys without a lifetime: jobs that wait or run.

    Who may not ask, as in the role of a worker, is not told: there `herd doctor` does, as another user.
    """
    try:
        memory = redis.info("memory")
    except RedisError:
        return
    policy, max_bytes = str(memory.get("maxmemory_policy")), int(memory.get("maxmemory", 0))
    if max_bytes and policy.startswith("allkeys"):
        raise SettingsError(
            f"Redis drops jobs that it has accepted when it comes to {max_bytes:,} bytes (maxmemory-policy "
            f"{policy}). Fix: redis-cli CONFIG SET maxmemory-policy noeviction"
        )
