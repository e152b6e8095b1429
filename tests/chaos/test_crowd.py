"""A crowd reads as badly as it says, or the tests that lean on it show nothing."""

import socket
from typing import Any

import pytest

from tests.chaos.harness.crowd import crowd_of, read_a_little, read_nothing, replace_oldest
from tests.chaos.harness.patience import wait_until

pytestmark = pytest.mark.redis

#: Longer than what a slow subscriber takes at once.
MESSAGE = b"x" * 3000


def num_unread(one: socket.socket) -> int:
    """Bytes that have come and were not read."""
    try:
        return len(one.recv(10 * len(MESSAGE), socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0


@pytest.mark.long
def test_the_slow_read_all_in_the_end_and_the_stuck_nothing(redis: Any, redis_url: str) -> None:
    with (
        crowd_of(2, redis_url, "t:*", read_nothing) as stuck,
        crowd_of(2, redis_url, "t:*", read_a_little) as slow,
    ):
        wait_until(lambda: redis.publish("t:1", b"") == 4, "all hear")
        redis.publish("t:2", MESSAGE)
        wait_until(lambda: min(map(num_unread, stuck.sockets)) > len(MESSAGE), "all has come")
        wait_until(lambda: max(map(num_unread, slow.sockets)) == 0, "all is read")
        assert min(map(num_unread, stuck.sockets)) > len(MESSAGE)


@pytest.mark.long
def test_each_of_the_flapping_leaves_and_another_comes(redis: Any, redis_url: str) -> None:
    with crowd_of(3, redis_url, "t:*", replace_oldest) as crowd:
        first = set(crowd.sockets)
        wait_until(lambda: first.isdisjoint(crowd.sockets), "all have left")
        wait_until(lambda: redis.publish("t:1", b"") == 3, "as many hear")
    wait_until(lambda: redis.publish("t:1", b"") == 0, "all have gone")
