"""Whoever looks after jobs goes on, whatever Redis answers to one of its questions."""

from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.ledger import SWEEP_PATIENCE_MS, Ledger
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.sweeper import Sweeper
from tests.tasks.herd import QUEUE, SWEEP, Herd

pytestmark = pytest.mark.redis


class RefusedOverflow:
    """Of which Redis will hear nothing."""

    def shed(self) -> None:
        raise ResponseError("WRONGTYPE")


@pytest.mark.long
def test_lost_messages_come_back_though_nothing_can_be_given_away(redis: Any) -> None:
    herd = Herd(redis, Ledger())
    herd.submit("a")
    redis.delete(QUEUE)
    herd.pass_time("a", SWEEP_PATIENCE_MS)
    redis.hset(SWEEP, "last", redis.time()[0] * 1000)  # another worker has swept
    sweeper = Sweeper(redis, herd.ledger, cast("Overflow", RefusedOverflow()))
    sweeper.start()
    try:
        wait_until(lambda: redis.llen(QUEUE), "its message is pushed again")
    finally:
        sweeper.stop()
