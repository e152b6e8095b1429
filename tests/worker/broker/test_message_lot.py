"""Messages of one queue come in lots: in the same order, and each is noted as held as it is taken."""

import json
from typing import Any

import pytest
from kombu import Connection
from kombu.asynchronous import Hub
from redis import Redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.priority import LANES, LOW
from llama_herd.worker.broker.message_notes import MAX_LOT_BYTES, MAX_MESSAGES, MessageNotes, TakenMessage
from llama_herd.worker.broker.queue_order import QueueOrder
from llama_herd.worker.broker.queue_transport import QueueTransport
from llama_herd.worker.process import own_settings
from tests.chaos.harness.patience import wait_until
from tests.worker.broker.queue_reader import NOTES, QUEUE, TIMES, Reader, message, own_tag, push

pytestmark = pytest.mark.redis


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
    assert len(reader.read()) == MAX_MESSAGES
    assert len(reader.read()) == 20
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
    noted = [notes[one.delivery_tag.encode()] for one in reader.messages]
    assert [(raw["properties"]["delivery_tag"], *place) for raw, *place in noted] == [
        (tag, "", QUEUE) for tag in "abc"
    ]
    times: list[Any] = redis.zrange(TIMES, 0, -1, withscores=True)
    assert {tag for tag, _ in times} == set(notes)
    assert [time_s for _, time_s in times] == [pytest.approx(redis.time()[0], abs=60)] * 3
    for one in reader.messages:
        one.ack()
    assert not redis.exists(NOTES, TIMES)


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
    assert redis.zrange(TIMES, 0, -1) == [reader.messages[4].delivery_tag.encode()]
    reader.messages[4].ack()
    wait_until(lambda: hub.fire_timers() and not redis.exists(NOTES, TIMES), "so is the last")
    assert num_calls(redis, "hdel") == before + 2


def test_acks_are_not_lost_while_redis_refuses_them(redis: Redis, connection: Connection, hub: Hub) -> None:
    push(redis, *"ab")
    reader = Reader(connection)
    reader.read()
    for key in (NOTES, TIMES):
        redis.rename(key, f"{key} before")
        redis.set(key, "somebody else's")
    reader.messages[0].ack()
    with capture_logs() as lines:
        wait_until(lambda: hub.fire_timers() and lines, "the ack is refused")
    for key in (NOTES, TIMES):
        redis.rename(f"{key} before", key)
    assert redis.hlen(NOTES) == redis.zcard(TIMES) == 2
    reader.messages[1].ack()
    wait_until(lambda: hub.fire_timers() and not redis.exists(NOTES, TIMES), "both are acked")


def test_held_is_what_is_noted_but_for_what_is_acked(redis: Redis, connection: Connection, hub: Hub) -> None:
    """Who does not say that it holds a message loses it to another."""
    push(redis, *"abc")
    reader = Reader(connection)
    reader.read()
    tags = [one.delivery_tag for one in reader.messages]
    assert sorted(reader.channel.tags_held) == sorted(tags)
    assert {tag.encode() for tag in tags} == set(redis.hkeys(NOTES))
    reader.messages[0].ack()
    assert sorted(reader.channel.tags_held) == sorted(tags[1:])


def test_a_message_that_is_given_back_waits_behind_all_others(redis: Redis, connection: Connection) -> None:
    push(redis, *"abc")
    reader = Reader(connection, prefetch=1)
    assert reader.read() == ["a"]
    reader.messages[0].requeue()
    found: list[str] = []
    while len(found) < 3:
        found += reader.read()
        reader.messages[-1].ack()
    assert found == ["b", "c", "a"]
    assert not redis.exists(NOTES, TIMES)


def test_a_channel_that_closes_acks_before(redis: Redis, connection: Connection, hub: Hub) -> None:
    push(redis, *"abc")
    reader = Reader(connection)
    reader.read()
    for one in reader.messages[:2]:
        one.ack()
    reader.channel.close()
    assert not redis.exists(NOTES, TIMES)
    assert redis.llen(QUEUE) == 1, "the one that is not acked is put back"


def test_a_channel_with_acks_left_may_be_closed_twice_without_redis(hub: Hub) -> None:
    """As Celery closes a connection that it has lost. An error of another kind would end the worker."""
    options = {"unacked_key": NOTES, "unacked_index_key": TIMES}
    with (
        EmbeddedRedis() as server,
        Redis.from_url(server.url) as redis,
        Connection(server.url, transport=QueueTransport, transport_options=options) as connection,
    ):
        push(redis, "a")
        reader = Reader(connection)
        reader.read()
        reader.messages[0].ack()
        server.stop()
        for _ in range(2):
            reader.channel.close()


def take(redis: Redis, num: int) -> list[TakenMessage]:
    return run_call(redis, MessageNotes.at(NOTES).take(QUEUE, QueueOrder().of_next(QUEUE, num))).messages


def test_a_lot_that_its_worker_died_with_is_put_back_by_another(redis: Redis, connection: Connection) -> None:
    push(redis, *"abc")
    lot = take(redis, 3)
    assert [json.loads(one.raw)["properties"]["delivery_tag"] for one in lot] == [*"abc"]
    assert redis.llen(QUEUE) == 0
    qos = Reader(connection).channel.qos
    for one in reversed(lot):
        qos.restore_by_tag(one.tag)
    assert not redis.exists(NOTES, TIMES)
    assert Reader(connection).read() == [*"abc"]


def test_a_lot_ends_with_the_message_that_makes_it_long(redis: Redis) -> None:
    for size in (10, MAX_LOT_BYTES, 10):
        redis.lpush(QUEUE, message("x", "x" * size))
    assert [len(take(redis, 3)), len(take(redis, 3))] == [2, 1]


#: Messages that Celery reads or not, and whatever else anybody may push.
ODD = [
    *(
        message("x", "x" * MAX_LOT_BYTES),
        message(7),
        message(),
        message("é"),
        message("x" * 129),
        "[]",
        "{",
        "",
    ),
    *(
        '{"properties": {"delivery_tag": "x", "delivery_info": 1}, "headers": {}}',
        '{"properties": {}}',
        "[" * 9000,
    ),
    message("x_").encode().replace(b"x_", b"x\xc3"),
    message("h").replace('"body": ""', '"body": 0x10'),
]


@pytest.mark.parametrize("odd", ODD, ids=map(str, range(len(ODD))))
@pytest.mark.parametrize("has_died", [False, True], ids=["read", "put back"])
def test_whatever_anybody_pushes_is_noted_and_then_handled_or_kept_among_the_dead(
    redis: Redis, connection: Connection, odd: str | bytes, has_died: bool
) -> None:
    """By who takes it, and by who finds the note of one that has died."""
    push(redis, "a")
    redis.lpush(QUEUE, odd)
    push(redis, "b")
    reader = Reader(connection)
    if has_died:
        for one in take(redis, 3):
            assert redis.hexists(NOTES, one.tag)
            reader.channel.qos.restore_by_tag(one.tag)
        assert not redis.exists(NOTES, TIMES)
    while len(reader.messages) + redis.xlen(Keys().key("dead")) < 3:
        reader.read()
    letters = run_call(redis, DeadLetters().letters())
    assert {"a", "b"} <= {own_tag(one) for one in reader.messages}
    assert {one.raw for one in letters} <= {odd if isinstance(odd, bytes) else odd.encode()}
    assert {one.queue for one in letters} <= {QUEUE}
    assert redis.hlen(NOTES) == len(reader.messages), "a note for each that is handled"


def test_a_message_that_is_too_long_is_noted_until_it_is_among_the_dead(
    redis: Redis, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury, noted = DeadLetters.bury, []

    def see(letters: DeadLetters, raw: bytes, **options: Any) -> Any:
        noted.append(redis.hlen(NOTES))
        return bury(letters, raw, **options)

    monkeypatch.setattr(DeadLetters, "bury", see)
    redis.lpush(QUEUE, message("x", "x" * own_settings().max_message_bytes))
    reader = Reader(connection)
    assert reader.read() == []
    assert (noted, redis.hlen(NOTES)) == ([1], 0)
    (letter,) = run_call(redis, DeadLetters().letters())
    assert letter.reason == "TooLong"


def test_a_list_that_is_none_ends_a_lot_and_is_told_if_it_comes_first(redis: Redis) -> None:
    redis.sadd(QUEUE + LOW, "x")
    push(redis, *"ab")
    assert len(take(redis, 3)) == 2
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        take(redis, 3)
