"""A worker that waits takes no message by that, is told when some come, and leaves them to idler ones."""

from queue import Empty
from socket import MSG_PEEK
from time import monotonic
from uuid import uuid4

import pytest
from kombu import Connection, Exchange, Queue
from kombu.asynchronous import Hub
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.tasks.protocol.priority import LANES, URGENT
from llama_herd.worker.broker.queue_channel import BUSY_DELAY_S, CROWD_DELAY_S, FULL_DELAY_S
from llama_herd.worker.broker.queue_transport import QueueTransport
from llama_herd.worker.process import own_settings
from tests.chaos.harness.patience import wait_until
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


def test_what_comes_between_a_look_and_its_answer_is_told_at_once(
    redis: Redis, connection: Connection
) -> None:
    """Both are read together, and then no poll tells of the second."""
    reader = Reader(connection)
    reader.channel.longest_wait_s = 60
    connection.transport.cycle.on_poll_start()
    sock = reader.channel.client.connection._sock
    wait_until(lambda: b":0" in sock.recv(1024, MSG_PEEK), "the look is answered")
    push(redis, "a")
    wait_until(lambda: b"invalidate" in sock.recv(1024, MSG_PEEK), "it is told of the message")
    connection.drain_events(timeout=5)
    assert len(reader.messages) == 1


def test_who_is_not_alone_leaves_messages_to_others_by_how_full_it_is(
    redis: Redis, connection: Connection
) -> None:
    settings = own_settings()
    reader = Reader(connection, prefetch=settings.num_places)
    delays_s = [reader.channel._delay_s]
    reader.channel.num_others = lambda: 3
    for num_more in (0, settings.slots // 2):
        push(redis, *map(str, range(num_more)))
        while redis.llen(QUEUE):
            reader.read()
        delays_s.append(reader.channel._delay_s)
    assert delays_s == [0, 0, BUSY_DELAY_S * (settings.slots // 2) / settings.slots]


@pytest.mark.parametrize("is_full", [False, True])
def test_those_that_may_look_do_so_over_a_time_as_long_as_they_are_many(
    redis: Redis, connection: Connection, is_full: bool
) -> None:
    """Who has free rows looks beside others that have some, and who has none beside all."""
    reader = full_reader(redis, connection, own_settings().slots if is_full else 0)
    reader.channel.num_others, reader.channel.num_idle_others = (lambda: 1000), (lambda: 100)
    longest_s = max(reader.channel._delay_s for _ in range(200))
    most_s = CROWD_DELAY_S * (1000 if is_full else 100)
    assert most_s / 2 < longest_s <= most_s + BUSY_DELAY_S


def full_reader(redis: Redis, connection: Connection, num_taken: int) -> Reader:
    """One with so many messages in hand, and room for more."""
    reader = Reader(connection, prefetch=own_settings().num_places)
    push(redis, *(f"running-{number}" for number in range(num_taken)))
    while redis.llen(QUEUE):
        reader.read()
    return reader


def test_who_is_not_alone_fills_its_batch_before_it_takes_what_would_wait(
    redis: Redis, connection: Connection
) -> None:
    settings = own_settings()
    reader = Reader(connection, prefetch=settings.num_places)
    reader.channel.num_others = lambda: 3
    sizes = []
    for num_more in (2, settings.num_places + 3):
        push(redis, *map(str, range(num_more)))
        while reader.channel.has_room and redis.llen(QUEUE):
            sizes.append(len(reader.read()))
    assert sizes == [2, settings.slots - 2, settings.num_places - settings.slots]


def test_who_is_full_leaves_the_last_messages_to_others_but_not_for_long(
    redis: Redis, connection: Connection
) -> None:
    """One beyond their number waits anywhere; what nobody takes may be more urgent than what runs here."""
    reader = full_reader(redis, connection, own_settings().slots)
    reader.channel.num_others = lambda: 2
    reader.channel.longest_wait_s = 60
    reader.wait()
    push(redis, *"abc")
    assert reader.read() == ["a"]
    began_s = monotonic()
    assert reader.read() == ["b"]
    assert monotonic() - began_s >= FULL_DELAY_S


def test_who_is_full_leaves_each_message_for_a_while(redis: Redis, connection: Connection) -> None:
    """Also those that come while it waits, after another worker has taken what was there."""
    reader = full_reader(redis, connection, own_settings().slots)
    reader.channel.num_others = lambda: 2
    reader.wait()
    deadline_s = monotonic() + 10 * FULL_DELAY_S
    while monotonic() < deadline_s:
        redis.delete(QUEUE)
        push(redis, uuid4().hex)
        with pytest.raises(TimeoutError):
            reader.connection.drain_events(timeout=FULL_DELAY_S / 2)
    assert redis.llen(QUEUE) == 1


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
    reader.channel.pauses = lambda _: True
    push(redis, *"abc")
    reader.wait()
    assert (reader.messages, redis.llen(QUEUE)) == ([], 3)
    reader.channel.pauses = lambda _: False
    assert reader.read() == [*"abc"]


def test_a_queue_that_is_paused_while_redis_is_asked_gives_nothing_though_another_is_not(
    redis: Redis, connection: Connection
) -> None:
    reader = Reader(connection)
    reader.consumer.add_queue(Queue("herd.n", Exchange("herd.n"), "herd.n"))
    reader.consumer.consume()
    push(redis, *"abc")
    connection.transport.cycle.on_poll_start()
    reader.channel.pauses = lambda queue: queue == QUEUE
    reader.wait()
    assert (reader.messages, redis.llen(QUEUE)) == ([], 3)


def test_the_loop_of_a_worker_ends_a_wait_in_time(connection: Connection, hub: Hub) -> None:
    """It would sleep until something else happens, and so would messages that were left for a moment."""
    channel = Reader(connection).channel
    channel.longest_wait_s = 0.05
    connection.transport.cycle.on_poll_start()
    with pytest.raises(Empty):
        channel._brpop_read()
    wait_until(lambda: hub.fire_timers() and channel._wait is None, "the wait is over")


def test_a_queue_that_is_read_no_longer_gives_no_message(redis: Redis, connection: Connection) -> None:
    """As Celery's `cancel_consumer` asks for it."""
    reader = Reader(connection)
    reader.wait()
    reader.consumer.cancel()
    push(redis, *"abc")
    reader.wait()
    assert (reader.messages, redis.llen(QUEUE), redis.exists(NOTES)) == ([], 3, 0)
