"""The fragile Redis breaks as it says, or the tests that lean on it show nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, OutOfMemoryError, ResponseError, TimeoutError

from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.patience import wait_until

pytestmark = pytest.mark.redis


@pytest.fixture
def server() -> Iterator[FragileRedis]:
    with FragileRedis() as server:
        yield server


@pytest.fixture
def redis(server: FragileRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url, retry=None) as connection:
        connection.set("kept", 1)
        yield connection


@pytest.mark.long
def test_one_that_was_away_comes_back_with_what_it_had(server: FragileRedis, redis: Redis) -> None:
    with server.away(), pytest.raises(ConnectionError):
        redis.ping()
    assert redis.get("kept") == b"1"


@pytest.mark.long
def test_one_that_stands_still_answers_late(server: FragileRedis, redis: Redis) -> None:
    impatient = Redis.from_url(server.url, socket_timeout=0.3, retry=None)
    with server.standing_still(), impatient, pytest.raises(TimeoutError):
        impatient.ping()
    assert redis.ping()


def test_a_full_one_reads_and_does_not_write(server: FragileRedis, redis: Redis) -> None:
    with server.full():
        assert redis.get("kept") == b"1"
        with pytest.raises(OutOfMemoryError):
            redis.set("more", 1)
    assert redis.set("more", 1)


@pytest.mark.long
def test_one_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(
    server: FragileRedis, redis: Redis
) -> None:
    with server.disk_full():
        wait_until(lambda: complaint(redis).startswith("MISCONF"), "a write refused")
        assert redis.get("kept") == b"1"
    wait_until(lambda: not complaint(redis), "a write taken")
    with server.away():
        pass
    assert redis.get("more") == b"1"


def complaint(redis: Any) -> str:
    """What a write is refused with."""
    try:
        redis.set("more", 1)
    except ResponseError as error:
        return str(error)
    return ""


@pytest.mark.long
def test_one_that_forgets_loses_the_block_and_nothing_before(server: FragileRedis, redis: Redis) -> None:
    wait_until(lambda: server.log.stat().st_size > 0, "the log written")
    with server.forgetting():
        redis.set("lost", 1)
    assert (redis.get("kept"), redis.get("lost")) == (b"1", None)


@pytest.mark.long
def test_a_log_to_which_much_was_added_is_written_anew(
    server: FragileRedis, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.chaos.harness.fragile_redis.MAX_ADDED_BYTES", 10_000)
    num_bytes = []
    for _ in range(2):
        for number in range(1000):
            redis.set("kept", number)
        num_bytes.append(server.log.stat().st_size)
        server.rewrite_log()
        num_bytes.append(server.log.stat().st_size)
    assert num_bytes[0] > num_bytes[1] < num_bytes[2] > num_bytes[3]
    with server.away():
        pass
    assert redis.get("kept") == b"999"
