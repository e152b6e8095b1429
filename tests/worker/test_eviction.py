"""No worker starts on a Redis that may throw accepted jobs away."""

from collections.abc import Iterator

import pytest
from redis import Redis

from llama_herd.errors import SettingsError
from llama_herd.worker.eviction import refuse_eviction

pytestmark = pytest.mark.redis


@pytest.fixture
def redis(redis: Redis) -> Iterator[Redis]:
    """Set as it was once the test is over."""
    before = redis.config_get("maxmemory*")
    yield redis
    for name in ("maxmemory", "maxmemory-policy"):
        redis.config_set(name, str(before[name]))


@pytest.mark.parametrize(
    ("policy", "max_bytes"), [("noeviction", 1 << 30), ("volatile-lru", 1 << 30), ("allkeys-lru", 0)]
)
def test_a_redis_that_keeps_what_waits_is_good(redis: Redis, policy: str, max_bytes: int) -> None:
    redis.config_set("maxmemory", max_bytes)
    redis.config_set("maxmemory-policy", policy)
    refuse_eviction(redis)


def test_a_redis_that_drops_any_key_is_refused_with_the_fix(redis: Redis) -> None:
    redis.config_set("maxmemory", 1 << 30)
    redis.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(
        SettingsError, match=r"1,073,741,824 bytes .*allkeys-lru\)\. Fix: redis-cli CONFIG SET"
    ):
        refuse_eviction(redis)
