"""A worker that waits takes no message by that, is told when some come, and leaves them to idler ones."""

import pytest
from kombu import Connection
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.tasks.protocol.priority import LANES, URGENT
from llama_herd.worker.broker.queue_channel import BUSY_DELAY_S, FULL_DELAY_S, QueueTransport
from llama_herd.worker.process import own_settings
from tests.worker.broker.queue_reader import NOTES, QUEUE, Reader, push

pytestmark = pytest.mark.redis


def test_what_comes_while_a_worker_waits_is_in_its_list_until_it_is_noted(
    redis: Redis, connection: Connection
) -> None:
    """A worker that ends meanwhile, or whose connection breaks, has taken nothing."""
    reader = Reader(connection)
    reader.wait()
    push(redis, *"ab")
    assert redis.llen(QUEUE) == 2
    connection.transport.cycle.on_poll_start()
    reader.channel.client.connection.disconnect()
    assert redis.llen(QUEUE) == 2
    assert reader.read() == [*"ab"]
    assert redis.hlen(NOTES) == 2


def test_a_waiting_worker_is_told_at_once_of_a_message_in_any_list(
    redis: Redis, connection: Connection
) -> None:
    reader = Reader(connection)
    reader.channel.longest_wait_s = 60
    for lane in LANES:
        reader.wait()
        push(redis, lane, lane=lane)
        assert reader.read() == [lane]


def test_who_is_not_alone_leaves_messages_to_others_by_how_full_it_is(
    redis: Redis, connection: Connection
) -> None:
    settings = own_settings()
    reader = Reader(connection, prefetch=settings.num_places)
    reader.wait()
    delays_s = [reader.channel._delay_s]
    reader.channel.is_alone = lambda: False
    for num_more in (0, settings.slots // 2, settings.slots - settings.slots // 2):
        push(redis, *map(str, range(num_more)))
        while redis.llen(QUEUE):
            reader.read()
        delays_s.append(reader.channel._delay_s)
    assert delays_s == [0, 0, BUSY_DELAY_S * (settings.slots // 2) / settings.slots, FULL_DELAY_S]


def test_who_is_not_alone_fills_its_batch_before_it_takes_what_would_wait(
    redis: Redis, connection: Connection
) -> None:
    settings = own_settings()
    reader = Reader(connection, prefetch=settings.num_places)
    reader.channel.is_alone = lambda: False
    sizes = []
    for num_more in (2, settings.num_places):
        push(redis, *map(str, range(num_more)))
        while reader.channel.has_room and redis.llen(QUEUE):
            sizes.append(len(reader.read()))
    assert sizes == [2, settings.slots - 2, settings.num_places - settings.slots]


def test_a_message_that_is_left_to_others_comes_if_nobody_takes_it(
    redis: Redis, connection: Connection
) -> None:
    reader = Reader(connection, prefetch=own_settings().num_places)
    reader.channel.is_alone = lambda: False
    reader.channel.longest_wait_s = 60
    push(redis, *map(str, range(own_settings().slots)))
    while redis.llen(QUEUE):
        reader.read()
    reader.wait()
    push(redis, "last")
    assert reader.read() == ["last"]


def test_who_may_not_be_told_looks_often(redis: Redis, redis_url: str) -> None:
    redis.acl_setuser(
        "deaf", enabled=True, nopass=True, keys="*", channels="*", commands=["+@all", "-client"]
    )
    with (
        Connection(redis_url.replace("//", "//deaf:x@"), transport=QueueTransport) as connection,
        capture_logs() as lines,
    ):
        reader = Reader(connection)
        reader.channel.longest_wait_s = 60
        for tag in "ab":
            reader.wait()
            push(redis, tag)
            assert reader.read() == [tag]
    assert [one["event"] for one in lines] == ["looking for messages often, Redis does not tell of them"]


def test_who_has_no_room_hears_what_changes_and_keeps_its_connection(
    redis: Redis, connection: Connection
) -> None:
    """A list that was empty when it looked last, and gets a message."""
    reader = Reader(connection, prefetch=1)
    reader.wait()
    push(redis, "a")
    assert reader.read() == ["a"]
    assert not reader.channel.has_room
    kept = reader.channel.client.connection._sock
    push(redis, "b", lane=URGENT)
    reader.wait()
    assert reader.channel.client.connection._sock is kept
    reader.messages[0].ack()
    assert reader.read() == ["b"]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_who_stops_while_it_waits_takes_nothing(
    redis: Redis, connection: Connection, is_cancelled: bool
) -> None:
    reader = Reader(connection)
    reader.wait()
    push(redis, *"abc")
    if is_cancelled:
        reader.consumer.cancel()
    reader.channel.close()
    assert (reader.messages, redis.llen(QUEUE), redis.exists(NOTES)) == ([], 3, 0)


def test_nothing_comes_of_a_queue_that_is_paused_while_it_is_waited_for(
    redis: Redis, connection: Connection
) -> None:
    reader = Reader(connection)
    reader.wait()
    reader.channel.paused_queues = {QUEUE}
    push(redis, *"abc")
    reader.wait()
    assert (reader.messages, redis.llen(QUEUE)) == ([], 3)
    reader.channel.paused_queues = set()
    assert reader.read() == [*"abc"]


def test_a_queue_that_is_read_no_longer_gives_no_message(redis: Redis, connection: Connection) -> None:
    """As Celery's `cancel_consumer` asks for it."""
    reader = Reader(connection)
    reader.wait()
    reader.consumer.cancel()
    push(redis, *"abc")
    reader.wait()
    assert (reader.messages, redis.llen(QUEUE), redis.exists(NOTES)) == ([], 3, 0)
