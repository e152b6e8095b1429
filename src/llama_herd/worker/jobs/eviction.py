"""Whether Redis drops keys when it is full, accepted jobs too: asked at the start, and every few seconds."""

from collections.abc import Callable

import structlog
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError

from llama_herd.errors import SettingsError
from llama_herd.tasks.protocol.worker_status import eviction_complaint

log = structlog.get_logger(__name__)


def evicting_policy(redis: Redis) -> str:
    """The policy by which a full Redis drops jobs that wait or run, as keys without a lifetime; empty: none.

    Raises NoPermissionError for a user without the right to INFO.
    """
    memory = redis.info("memory")
    policy = str(memory.get("maxmemory_policy"))
    return policy if int(memory.get("maxmemory", 0)) and policy.startswith("allkeys") else ""


def refuse_eviction(redis: Redis) -> None:
    """Raise SettingsError when Redis may drop jobs. A user without the right to ask is not checked."""
    try:
        policy = evicting_policy(redis)
    except NoPermissionError:
        return
    if policy:
        raise SettingsError(eviction_complaint(policy))


class EvictionWatch:
    """Notices when somebody lets Redis evict keys while the worker runs: jobs are lost from then on."""

    def __init__(self, redis: Redis, on_change: Callable[[], None]) -> None:
        self._redis = redis
        self._on_change = on_change
        #: The policy by which Redis may evict jobs now; empty: none.
        self.policy = ""

    def look(self) -> None:
        """Look again; what cannot be seen stays as it was."""
        try:
            policy = evicting_policy(self._redis)
        except RedisError:
            return
        if policy == self.policy:
            return
        self.policy = policy
        if policy:
            log.error("Redis may evict jobs", reason=eviction_complaint(policy))
        else:
            log.info("Redis evicts no jobs any more")
        self._on_change()
