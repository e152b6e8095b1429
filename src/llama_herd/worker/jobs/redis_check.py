"""Refuses a Redis that cannot keep jobs or lets no worker run them; sees later if it evicts any."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple, Self

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
from llama_herd.tasks.connection.complaint import denied_complaint, distrusts, is_denied, redis_complaint
from llama_herd.tasks.connection.redis_url import masked
from llama_herd.tasks.connection.temporary_errors import is_temporary
from llama_herd.tasks.ledger.held_jobs import HeldJob, renew
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.tasks.protocol.worker_status import eviction_complaint
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: How long a Redis may be a replica: one that is promoted to primary needs some seconds.
PROMOTION_S = 10.0
POLL_S = 0.5

#: Ids that no job can have.
NO_JOBS = ("probe 1", "probe 2")


def wait_for_usable_redis(redis: Redis, settings: WorkerSettings, promotion_s: float = PROMOTION_S) -> None:
    """Wait until Redis answers. Raises SettingsError, with the fix, if it cannot keep jobs."""
    started_s, said = monotonic(), ""
    while True:
        try:
            for queue, own in settings.by_queue.items():
                _try_rights(own, queue, redis)
            with suppress(NoPermissionError):  # who has no right to ask is not checked
                if policy := MemoryLimit.of(redis).evicts:
                    raise SettingsError(eviction_complaint(policy))
            return
        except RedisError as error:
            complaint = f"Redis at {masked(settings.redis_url)} {redis_complaint(error)}"
            if not _may_pass(error, monotonic() - started_s < promotion_s):
                raise SettingsError(complaint) from None
        if complaint != said:
            log.warning("waiting for Redis", reason=complaint)
            said = complaint
        sleep(POLL_S)


def _try_rights(own: WorkerSettings, queue: str, redis: Redis) -> None:
    """Do a little of each thing that a worker of this queue does, without an effect. Raises SettingsError.

    To delete the records of two impossible jobs at once is refused by a replica and by a cluster.
    """
    ledger = Ledger.from_settings(own)
    tries: dict[str, Callable[[], object]] = {
        "write the records of jobs": lambda: redis.delete(*map(ledger.job_key, NO_JOBS)),
        "run scripts": lambda: run_call(redis, renew("nobody", [HeldJob(ledger, NO_JOBS[0], 1)], ledger)),
        f"read the queue {queue}": lambda: redis.exists(*lists_of(queue)),
    }
    for what, act in tries.items():
        try:
            act()
        except RedisError as error:
            if not is_denied(error):
                raise
            raise SettingsError(f"Redis at {masked(own.redis_url)} {denied_complaint(error, what)}") from None


def _may_pass(error: RedisError, may_be_promoted: bool) -> bool:
    """Whether to wait: without end for a Redis that is away, so that nobody must start workers again."""
    if isinstance(error, AuthenticationError | AuthorizationError | ClusterDownError) or distrusts(error):
        return False
    if isinstance(error, ReadOnlyError | MasterDownError):
        return may_be_promoted
    return is_temporary(error)


class MemoryLimit(NamedTuple):
    """How much memory Redis may take; 0: no limit.

    evicts: the policy by which it drops jobs that wait or run, as keys without a lifetime, when it is full;
    empty: it drops none.
    """

    max_bytes: int
    evicts: str

    @classmethod
    def of(cls, redis: Redis) -> Self:
        """Ask Redis. Raises NoPermissionError for a user without the right to INFO."""
        memory = redis.info("memory")
        max_bytes, policy = int(memory.get("maxmemory", 0)), str(memory.get("maxmemory_policy"))
        return cls(max_bytes, policy if max_bytes and policy.startswith("allkeys") else "")
