"""Messages that nobody asks for are noticed in any of a worker's queues."""

from collections.abc import Set as AbstractSet

import pytest
from redis import Redis

from llama_herd.tasks.ledger import Ledger
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.watchdog import Watchdog

pytestmark = pytest.mark.redis


class SilentPoller:
    """Has room for messages, and asks for none."""

    closed_queues: AbstractSet[str] = frozenset()
    num_polls = 0
    has_room = True


def test_a_message_that_waits_in_any_queue_makes_silence_suspicious(redis: Redis) -> None:
    watchdog = Watchdog(redis, Ledger(), ["herd.acme:m", "herd.globex:m"], silence_s=60)
    watchdog.watch(SilentPoller())
    redis.lpush("herd.globex:m", "message")
    watchdog.start()
    wait_until(lambda: watchdog.silent_s, "the silence is noticed")
    watchdog.stop()
