"""Messages of one queue come in lots: in the same order, and each is noted as held before it is handled."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.asynchronous import Hub, set_event_loop
from kombu.message import Message
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError, ReadOnlyError
from structlog.testing import capture_logs

from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.priority import LANES, LOW, NORMAL, URGENT
from llama_herd.worker.broker.message_lot import MAX_BYTES, MAX_MESSAGES, message_in, take_messages
from llama_herd.worker.broker.queue_channel import QueueTransport
from llama_herd.worker.broker.queue_order import QueueOrder
from tests.chaos.harness.patience import wait_until

pytestmark = pytest.mark.redis

QUEUE = "herd.m"
NOTES, TIMES = Keys().unacked_key, f"{Keys().unacked_key}_index"


class Reader:
    """Reads one queue as a worker does, with so many places."""

    def __init__(self, connection: Connection, prefetch: int = 0) -> None:
        self.messages: list[Message] = []
        self.connection = connection
        self.channel = connection.default_channel
        queue = Queue(QUEUE, Exchange(QUEUE), QUEUE)
        self.consumer = Consumer(self.channel, [queue], on_message=self.messages.append)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def read(self) -> list[str]:
        """What one look at Redis brings: the tags."""
        before = len(self.messages)
        self.connection.drain_events(timeout=60)
        return [message.delivery_tag for message in self.messages[before:]]


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    options = {"unacked_key": NOTES, "unacked_index_key": TIMES}
    with Connection(redis_url, transport=QueueTransport, transport_options=options) as connection:
        yield connection


def message(tag: Any = None, body: str = "") -> str:
    properties = {"delivery_tag": tag, "delivery_info": {"exchange": "", "routing_key": QUEUE}}
    return json.dumps({"body": body, "properties": properties, "headers": {"id": str(uuid4())}})


def push(redis: Redis, *tags: Any, lane: str = NORMAL) -> None:
    for tag in tags:
        redis.lpush(QUEUE + lane, message(tag))


def test_the_order_is_that_of_single_messages(redis: Redis, connection: Connection) -> None:
    for lane in LANES:
        push(redis, *(f"{lane}{number}" for number in range(20)), lane=lane)
    expected, order = [], QueueOrder()
    waiting = {QUEUE + lane: [f"{lane}{number}" for number in range(20)] for lane in LANES}
    for _ in range(sum(map(len, waiting.values()))):
        (lists,) = order.of_next(QUEUE, 1)
        expected.append(next(waiting[name] for name in lists if waiting[name]).pop(0))
        order.note(QUEUE)
    reader = Reader(connection)
    tags: list[str] = []
    while len(tags) < len(expected):
        tags += reader.read()
    assert tags == expected


def test_one_look_takes_a_lot_and_no_more_than_there_are_places(redis: Redis, connection: Connection) -> None:
    push(redis, *map(str, range(100)))
    reader = Reader(connection, prefetch=MAX_MESSAGES + 20)
    assert len(reader.read()) == 1 + MAX_MESSAGES
    assert len(reader.read()) == 19
    assert not reader.channel.has_room
    assert redis.llen(QUEUE) == 100 - MAX_MESSAGES - 20


def test_messages_of_one_tag_take_a_place_each(redis: Redis, connection: Connection) -> None:
    push(redis, *["same"] * 100)
    reader = Reader(connection, prefetch=20)
    assert (len(reader.read()), reader.channel.has_room) == (20, False)
    assert redis.llen(QUEUE) == 80
    for one in reader.messages:
        one.ack()
    assert reader.channel.has_room
    assert not redis.exists(NOTES, TIMES)


def test_each_is_noted_as_kombu_notes_it(redis: Redis, connection: Connection) -> None:
    push(redis, *"abc")
    reader = Reader(connection)
    reader.read()
    notes = {tag: json.loads(note) for tag, note in redis.hgetall(NOTES).items()}
    assert {tag: note[1:] for tag, note in notes.items()} == {tag: ["", QUEUE] for tag in (b"a", b"b", b"c")}
    assert set(redis.zrange(TIMES, 0, -1)) == set(notes)
    for one in reader.messages:
        one.ack()
    assert not redis.exists(NOTES, TIMES)


@pytest.mark.parametrize("runs", [False, True])
def test_one_whose_note_is_lost_on_the_way_is_handled_all_the_same(
    redis: Redis, connection: Connection, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """Its list has it no more, so who brings no record would never come again."""
    reader, execute = Reader(connection), Pipeline.execute

    def lose(pipeline: Pipeline, **options: Any) -> Any:
        is_note = any(words[0] == "HSET" for words, _ in pipeline.command_stack)
        answers = execute(pipeline, **options) if runs or not is_note else []
        if is_note:
            raise ConnectionError
        return answers

    monkeypatch.setattr(Pipeline, "execute", lose)
    push(redis, "a")
    assert reader.read() == ["a"]
    assert redis.exists(NOTES) == runs


@pytest.fixture
def hub() -> Iterator[Hub]:
    """The loop of a worker."""
    hub = Hub()
    set_event_loop(hub)
    yield hub
    hub.close()
    set_event_loop(None)


def test_a_connection_that_cannot_be_used_is_closed(redis: Redis, connection: Connection, hub: Hub) -> None:
    """By a worker that connects anew while Redis is a replica: again in each moment, while that lasts."""
    before = len(redis.client_list())
    assert connection.default_channel
    redis.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(ReadOnlyError):
            connection.transport.register_with_event_loop(connection.connection, hub)
    finally:
        redis.replicaof("no", "one")
    wait_until(lambda: len(redis.client_list()) == before, "no connection is left")


def test_a_full_redis_lets_a_worker_connect(redis: Redis, connection: Connection, hub: Hub) -> None:
    push(redis, "a")
    redis.config_set("maxmemory", 1)
    try:
        assert Reader(connection).read() == ["a"]
        connection.transport.register_with_event_loop(connection.connection, hub)
    finally:
        redis.config_set("maxmemory", 0)


def num_calls(redis: Redis, command: str) -> int:
    return int(redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_acks_of_a_moment_are_one_round_trip(redis: Redis, connection: Connection, hub: Hub) -> None:
    push(redis, *"abcde")
    reader = Reader(connection)
    reader.read()
    before = num_calls(redis, "hdel")
    for one in reader.messages[:4]:
        one.ack()
    assert reader.channel.qos.num_held() == {QUEUE: 1}
    assert redis.hlen(NOTES) == 5
    wait_until(lambda: hub.fire_timers() and redis.hlen(NOTES) == 1, "the notes are taken back")
    assert redis.zrange(TIMES, 0, -1) == [b"e"]
    reader.messages[4].ack()
    wait_until(lambda: hub.fire_timers() and not redis.exists(NOTES, TIMES), "so is the last")
    assert num_calls(redis, "hdel") == before + 2


def test_acks_are_not_lost_while_redis_refuses_them(redis: Redis, connection: Connection, hub: Hub) -> None:
    push(redis, *"ab")
    reader = Reader(connection)
    reader.read()
    redis.delete(TIMES)
    redis.set(TIMES, "somebody else's")
    reader.messages[0].ack()
    with capture_logs() as lines:
        wait_until(lambda: hub.fire_timers() and lines, "the ack is refused")
    assert redis.hlen(NOTES) == 1
    redis.delete(TIMES)
    reader.messages[1].ack()
    wait_until(lambda: hub.fire_timers() and not redis.exists(NOTES, TIMES), "both are acked")


def test_a_channel_that_closes_acks_before(redis: Redis, connection: Connection, hub: Hub) -> None:
    push(redis, *"abc")
    reader = Reader(connection)
    reader.read()
    for one in reader.messages[:2]:
        one.ack()
    reader.channel.close()
    assert not redis.exists(NOTES, TIMES)
    assert redis.llen(QUEUE) == 1, "the one that is not acked is put back"


def test_a_lot_that_its_worker_died_with_is_put_back_by_another(redis: Redis, connection: Connection) -> None:
    push(redis, *"abc")
    orders = QueueOrder().of_next(QUEUE, 3)
    assert [one.tag for one in run_call(redis, take_messages(QUEUE, orders, NOTES, TIMES))] == [*"abc"]
    assert redis.llen(QUEUE) == 0
    qos = Reader(connection).channel.qos
    for tag in "abc":
        qos.restore_by_tag(tag)
    assert redis.llen(QUEUE) == 3
    assert not redis.exists(NOTES, TIMES)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_who_stops_takes_no_more_than_it_was_given(
    redis: Redis, connection: Connection, is_cancelled: bool
) -> None:
    reader = Reader(connection)
    reader.channel.brpop_timeout = 60
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)  # a BRPOP waits from now on
    push(redis, *"abc")
    if is_cancelled:
        reader.consumer.cancel()
    reader.channel.close()
    assert [one.delivery_tag for one in reader.messages] == ([] if is_cancelled else ["a"])
    assert redis.llen(QUEUE) == 3, "what was given is put back, the others have stayed"
    assert not redis.exists(NOTES)


def test_no_lot_comes_of_a_queue_that_is_paused_while_redis_waits(
    redis: Redis, connection: Connection
) -> None:
    reader = Reader(connection)
    reader.consumer.add_queue(Queue("herd.n", Exchange("herd.n"), "herd.n"))
    reader.consumer.consume()
    reader.channel.brpop_timeout = 60
    push(redis, "first")
    assert reader.read() == ["first"], "so it is the last in turn, and may give all"
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)  # a BRPOP waits from now on
    reader.channel.paused_queues = {QUEUE}
    push(redis, *"abc")
    assert reader.read() == ["a"]
    assert redis.llen(QUEUE) == 2


def test_a_queue_that_is_read_no_longer_gives_no_lot(redis: Redis, connection: Connection) -> None:
    """As Celery's `cancel_consumer` asks for it."""
    reader = Reader(connection)
    reader.channel.brpop_timeout = 60
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)  # a BRPOP waits from now on
    reader.consumer.cancel()
    before = num_calls(redis, "lindex")
    push(redis, *"abc")
    connection.drain_events(timeout=60)
    assert num_calls(redis, "lindex") == before, "only what Redis has given already is put back"
    assert (reader.messages, redis.llen(QUEUE), redis.exists(NOTES)) == ([], 3, 0)


OTHERS = [
    *(message("x", "x" * MAX_BYTES), message(7), message(), message("é"), message("x" * 129), "[]", "{", ""),
    message("x_").encode().replace(b"x_", b"x\xc3"),
]


@pytest.mark.parametrize("other", OTHERS, ids=map(str, range(len(OTHERS))))
def test_what_is_not_for_a_lot_stays_in_its_place(redis: Redis, other: str | bytes) -> None:
    push(redis, "a")
    redis.lpush(QUEUE, other)
    push(redis, "b")
    orders = QueueOrder().of_next(QUEUE, 3)
    assert [one.tag for one in run_call(redis, take_messages(QUEUE, orders, NOTES, TIMES))] == ["a"]
    assert redis.lindex(QUEUE, -1) == (other.encode() if isinstance(other, str) else other)
    assert redis.hkeys(NOTES) == [b"a"]


def test_a_list_that_is_none_holds_up_nothing_else(redis: Redis) -> None:
    redis.sadd(QUEUE + URGENT, "x")
    push(redis, "a", lane=LOW)
    orders = QueueOrder().of_next(QUEUE, 2)
    assert [one.tag for one in run_call(redis, take_messages(QUEUE, orders, NOTES, TIMES))] == ["a"]


#: JSON to Redis, but not to Python.
HEX = message("h").replace('"body": ""', '"body": 0x10')


def test_a_message_that_only_redis_can_read_is_put_aside(redis: Redis, connection: Connection) -> None:
    push(redis, "a")
    redis.lpush(QUEUE, HEX)
    push(redis, "b")
    assert Reader(connection).read() == ["a", "b"]
    (letter,) = run_call(redis, DeadLetters().letters())
    assert letter.raw == HEX.encode()
    assert set(redis.hkeys(NOTES)) == {b"a", b"b"}


def test_so_is_its_note_when_its_worker_has_died(redis: Redis, connection: Connection) -> None:
    redis.lpush(QUEUE, HEX)
    run_call(redis, take_messages(QUEUE, QueueOrder().of_next(QUEUE, 1), NOTES, TIMES))
    assert redis.hkeys(NOTES) == [b"h"]
    Reader(connection).channel.qos.restore_by_tag(b"h")
    (letter,) = run_call(redis, DeadLetters().letters())
    assert (letter.raw, letter.queue) == (HEX.encode(), QUEUE)
    assert not redis.exists(NOTES, TIMES)


def test_another_note_is_kept_as_it_is() -> None:
    assert message_in(b"no note") == (b"no note", "")


def test_what_nobody_holds_comes_again_at_each_look(redis: Redis, connection: Connection) -> None:
    """Not at every tenth one only, as by kombu."""
    reader = Reader(connection)
    for tag in ("one", "two"):
        redis.hset(NOTES, tag, json.dumps([json.loads(message(tag)), "", QUEUE]))
        redis.zadd(TIMES, {tag: 1})
        reader.channel.qos.restore_visible()
        assert redis.hlen(NOTES) == len(reader.messages)
        assert reader.read() == [tag]
