"""The fault proxy does what it says, or the tests that lean on it show nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, TimeoutError

from llama_herd.local.redis_server import EmbeddedRedis
from tests.chaos.harness.proxy import FaultProxy

pytestmark = pytest.mark.redis


@pytest.fixture
def proxy(redis_server: EmbeddedRedis) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def through(redis: Redis, proxy: FaultProxy) -> Iterator[Redis]:
    with Redis.from_url(proxy.url) as connection:
        connection.ping()
        yield connection


@pytest.fixture
def impatient(redis: Redis, proxy: FaultProxy) -> Iterator[Redis]:
    with Redis.from_url(proxy.url, socket_timeout=0.3, retry=None) as connection:
        yield connection


@pytest.mark.long
def test_it_passes_everything_on_also_byte_by_byte(through: Redis, proxy: FaultProxy) -> None:
    for is_bytewise in (False, True):
        proxy.is_bytewise = is_bytewise
        through.set("long", b"x" * 1000)
        assert through.get("long") == b"x" * 1000


def test_a_reset_breaks_what_stands_and_lets_new_connections_in(through: Any, proxy: FaultProxy) -> None:
    with through.client() as one:
        one.ping()
        proxy.reset()
        with pytest.raises(ConnectionError):
            one.ping()
    assert through.ping()


@pytest.mark.long
def test_a_black_hole_keeps_the_request_and_delivers_it_late(
    through: Any, impatient: Redis, redis: Redis, proxy: FaultProxy
) -> None:
    with through.client() as one:
        one.ping()
        proxy.hold()
        one.connection.send_command("INCR", "late")
        with pytest.raises(TimeoutError):
            impatient.ping()
        assert redis.get("late") is None
        proxy.release()
        assert one.connection.read_response() == 1


def test_a_cut_reply_is_lost_though_its_command_ran(through: Any, redis: Redis, proxy: FaultProxy) -> None:
    with through.client() as one:
        one.ping()
        proxy.num_cuts = 1
        with pytest.raises(ConnectionError):
            one.incr("done")
    assert redis.get("done") == b"1"
    assert through.ping()


@pytest.mark.parametrize(("is_reply", "num_run"), [(False, b"1"), (True, b"2")])
def test_a_call_or_its_reply_is_lost_by_its_number(
    through: Any, redis: Redis, proxy: FaultProxy, is_reply: bool, num_run: bytes
) -> None:
    with through.client() as one:
        one.ping()
        proxy.lose(2, is_reply=is_reply)
        one.incr("done")
        assert not proxy.lost
        with pytest.raises(ConnectionError):
            one.incr("done")
    assert b"done" in proxy.lost
    assert redis.get("done") == num_run
    assert through.ping()


@pytest.mark.long
def test_a_delay_is_a_delay(through: Redis, impatient: Redis, proxy: FaultProxy) -> None:
    proxy.delay_s = 1
    with pytest.raises(TimeoutError):
        impatient.ping()


def test_a_slow_line_takes_its_time_for_what_is_long(
    through: Redis, impatient: Redis, redis: Redis, proxy: FaultProxy
) -> None:
    proxy.bytes_per_s = 100_000
    with pytest.raises(TimeoutError):
        impatient.set("long", b"x" * 100_000)
    assert impatient.ping()
    assert through.set("long", b"y" * 100_000)
    assert redis.get("long") == b"y" * 100_000
