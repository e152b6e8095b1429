"""What calls cost does not grow with the queue; at a million jobs too."""

from collections.abc import Iterator
from time import monotonic, sleep, time
from typing import Any

import pytest
from redis import Redis

from benchmarks import queue_length
from benchmarks.queue_length import LongQueue, Plan
from benchmarks.report import Table
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client

pytestmark = pytest.mark.program

#: A sweep costs so much that it is one for long queues, and has the others to do.
GROWING = {"sweep"}


def check(tables: list[Table]) -> None:
    """A call takes at the longest queue what it takes at the shortest."""
    for what, short, long in (row.values() for row in tables[0].rows):
        assert what in GROWING or float(str(long)) <= float(str(short)) + 1, what


def test_no_call_takes_more_commands_for_a_longer_queue() -> None:
    tables = list(queue_length.measure(Plan(lengths=(50, 2_000), num_calls=5, waiting_s=3)))
    check(tables)
    *costs, noticed = tables
    assert [table.head[0] for table in costs] == ["commands", "bytes", "CPU of Redis, us"]
    assert [list(row.values()) for row in noticed.rows] == [["a deadline", 1, 1], ["a lost message", 1, 1]]


@pytest.fixture
def million() -> Iterator[LongQueue]:
    with (
        EmbeddedRedis() as server,
        Redis.from_url(server.url) as redis,
        Client(server.url, model=queue_length.MODEL) as client,
    ):
        queue = LongQueue(redis, client)
        queue.fill(1_000_000)
        yield queue


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_deadline_and_a_lost_message_are_noticed_within_two_seconds_among_a_million(
    million: LongQueue,
) -> None:
    """With a sweep a second, as one worker makes it."""
    redis: Any = million.redis
    assert redis.llen(million.queue) == 1_000_000
    million.add_lost("lost")
    lost_s = monotonic()
    late_ms = int(1000 * time()) + 4_000
    million.submit("late", deadline_ms=late_ms)
    noticed: dict[str, float] = {}
    while len(noticed) < 2:
        sleep(1)
        million.sweep()
        if million.is_back():
            noticed.setdefault("lost", monotonic() - lost_s - Plan().waiting_s)
        if million.has_ended("late"):
            noticed.setdefault("late", time() - late_ms / 1000)
        assert monotonic() - lost_s < 60, noticed
    assert max(noticed.values()) <= 2, noticed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_call_takes_more_commands_for_a_million() -> None:
    tables = list(queue_length.measure(Plan(lengths=(1_000, 1_000_000))))
    check(tables)
    print(*tables, sep="\n\n")
