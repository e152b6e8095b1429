"""Refuses a Redis that cannot keep jobs: a cluster, a replica, or one that evicts keys when it is full."""

from contextlib import suppress
from time import monotonic, sleep

import structlog
from redis import Redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
)

from llama_herd.errors import SettingsError
from llama_herd.tasks.complaint import complaint_of
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.passing import passes
from llama_herd.tasks.redis_url import masked
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: How long a Redis may be a replica: one that is promoted to primary needs some seconds.
PROMOTION_S = 10.0
POLL_S = 0.5


def check_redis(redis: Redis, settings: WorkerSettings, promotion_s: float = PROMOTION_S) -> None:
    """Wait until Redis answers. Raises SettingsError, with the fix, if it cannot keep jobs."""
    ledger, started_s, said = Ledger.of(settings.of_first_tenant), monotonic(), ""
    while True:
        try:
            _try_to_write(redis, ledger)
            refuse_eviction(redis)
            return
        except RedisError as error:
            complaint = f"Redis at {masked(settings.redis_url)} {complaint_of(error)}"
            if not _passes(error, monotonic() - started_s < promotion_s):
                raise SettingsError(complaint) from None
        if complaint != said:
            log.warning("waiting for Redis", reason=complaint)
            said = complaint
        sleep(POLL_S)


def refuse_eviction(redis: Redis) -> None:
    """Raise SettingsError when a full Redis drops keys without a lifetime: jobs that wait or run.

    A Redis user without the right to INFO, as in the role of a worker, is not checked. There run
    `herd doctor` as another user.
    """
    try:
        memory = redis.info("memory")
    except NoPermissionError:
        return
    policy, max_bytes = str(memory.get("maxmemory_policy")), int(memory.get("maxmemory", 0))
    if max_bytes and policy.startswith("allkeys"):
        raise SettingsError(
            f"Redis drops accepted jobs when it reaches {max_bytes:,} bytes (maxmemory-policy {policy}). "
            "Fix: redis-cli CONFIG SET maxmemory-policy noeviction"
        )


def _try_to_write(redis: Redis, ledger: Ledger) -> None:
    """Delete the records of two impossible jobs at once: a replica and a cluster refuse that."""
    with suppress(NoPermissionError):
        redis.delete(ledger.job_key("probe 1"), ledger.job_key("probe 2"))


def _passes(error: RedisError, may_be_promoted: bool) -> bool:
    """Whether to wait: without end for a Redis that is away, so that nobody must start workers again."""
    if isinstance(error, AuthenticationError | AuthorizationError | ClusterDownError):
        return False
    if isinstance(error, ReadOnlyError | MasterDownError):
        return may_be_promoted
    return passes(error)
