"""A worker's standstill is noticed: messages that nobody asks for, and parts that make no progress."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.worker.broker.later_tasks import LaterTasks
from llama_herd.worker.broker.spoilt_queues import SpoiltQueues
from llama_herd.worker.jobs.tenancy import Tenancies
from llama_herd.worker.jobs.watchdog import Watchdog
from tests.chaos.harness.patience import wait_until
from tests.worker.jobs.tenancies import alone, new_tenancy

pytestmark = pytest.mark.redis


class SilentPoller:
    """Has room for messages, and asks for none."""

    pauses: Callable[[str], bool] = staticmethod(lambda _: False)
    num_others: Callable[[], int] = staticmethod(lambda: 0)
    num_idle_others: Callable[[], int] = staticmethod(lambda: 0)
    spoilt = SpoiltQueues()
    later = LaterTasks()
    tags_held: Sequence[str] = ()
    num_polls = 0
    has_room = True


@pytest.mark.long
def test_a_message_that_waits_in_any_queue_makes_silence_suspicious(redis: Redis) -> None:
    tenancies = Tenancies(new_tenancy(redis, Ledger(tenant)) for tenant in ("acme", "globex"))
    watchdog = Watchdog(tenancies, 60, {}, on_eviction=lambda: None)
    watchdog.watch(SilentPoller())
    redis.lpush("herd.globex:m", "message")
    watchdog.start()
    wait_until(lambda: watchdog.silent_s, "the silence is noticed")
    watchdog.stop()


class Waiting:
    """Has something to do, and does nothing unless it moves: then it has done more at each look."""

    num_waiting = 3
    moves = False
    _num_answered = 7

    @property
    def num_answered(self) -> int:
        self._num_answered += self.moves
        return self._num_answered


@pytest.fixture
def part() -> Waiting:
    return Waiting()


@pytest.fixture
def watchdog(redis: Redis, part: Waiting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    """Looks often."""
    monkeypatch.setattr("llama_herd.worker.jobs.watchdog.INTERVAL_S", 0.01)
    watchdog = Watchdog(alone(new_tenancy(redis)), 60, {"part": part}, on_eviction=lambda: None)
    yield watchdog
    watchdog.stop()


def test_a_part_that_has_work_and_does_none_is_noticed(watchdog: Watchdog, part: Waiting, redis: Any) -> None:
    watchdog.start()
    wait_until(lambda: watchdog.stuck_s > 0, "the part stands still")
    part.num_waiting = 0
    wait_until(lambda: watchdog.stuck_s == 0, "nothing waits any more")
    part.num_waiting = 1
    wait_until(lambda: watchdog.stuck_s > 0, "the part stands still")
    part.moves = True
    wait_until(lambda: watchdog.stuck_s == 0, "a part that moves is not blamed")
    assert redis.keys() == []


class LookedAt(SilentPoller):
    """Counts the looks at it. It polls on, or has no room, or nothing waits: any of these explains it."""

    def __init__(self, *, polls: bool = False, has_room: bool = True) -> None:
        self.num_looks = 0
        self._polls = polls
        self.has_room = has_room

    @property
    def num_polls(self) -> int:  # type: ignore[override]
        self.num_looks += 1
        return self.num_looks * self._polls


@pytest.mark.parametrize(
    ("poller", "queue"),
    [
        (LookedAt(polls=True), "herd.m"),
        (LookedAt(has_room=False), "herd.m"),
        (LookedAt(), "herd.another's"),
    ],
    ids=["it polls", "no room", "an empty queue"],
)
def test_what_explains_that_no_message_comes_is_no_silence(
    watchdog: Watchdog, redis: Redis, poller: LookedAt, queue: str
) -> None:
    redis.lpush(queue, "message")
    watchdog.watch(poller)
    watchdog.start()
    wait_until(lambda: poller.num_looks > 5, "it has been looked at")
    assert watchdog.silent_s == 0


@pytest.mark.parametrize("setting", ["maxmemory", "min-replicas-to-write"])
def test_a_redis_that_takes_no_writes_explains_a_standstill(
    watchdog: Watchdog, redis: Any, setting: str
) -> None:
    watchdog.watch(SilentPoller())
    redis.lpush("herd.m", "message")
    redis.config_set(setting, 1)
    try:
        redis.config_resetstat()
        watchdog.start()
        wait_until(lambda: len(redis.info("errorstats")) > 0, "a look is refused")
        wait_until(lambda: sum(one["count"] for one in redis.info("errorstats").values()) > 5, "and more")
        assert (watchdog.stuck_s, watchdog.silent_s) == (0, 0)
    finally:
        redis.config_set(setting, 0)
