"""Messages in the hands of a worker that is gone go back into their lists, and no others do."""

import json
from itertools import chain
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.tasks.ledger.redis_call import run_call, run_calls, run_dialogue
from llama_herd.tasks.protocol.priority import LANES, LOW, NORMAL, lists_of
from llama_herd.worker.broker.message_notes import MAX_BYTES, MAX_TAGS, MessageNotes, PutBack, TakenMessage
from llama_herd.worker.jobs.lost_messages import SEEN_S, SILENT_S, LostMessages
from tests.worker.broker.queue_reader import NOTES, QUEUE, TIMES, message, push

pytestmark = pytest.mark.redis

NOTED = MessageNotes.at(NOTES)


class Clock:
    """A worker's clock, and what it makes the worker see at each moment."""

    def __init__(self, redis: Redis) -> None:
        self.now_s = 0.0
        self.redis = redis
        self.lost = LostMessages(redis, NOTED, lambda: self.now_s)

    def look_at(self, now_s: float) -> int:
        """Look at this moment. Returns how many messages are noted as held after that."""
        self.now_s = now_s
        self.lost.look()
        return int(self.redis.hlen(NOTES))


@pytest.fixture
def clock(redis: Redis) -> Clock:
    return Clock(redis)


def take(redis: Redis, num: int) -> list[TakenMessage]:
    return run_call(redis, NOTED.take(QUEUE, [lists_of(QUEUE)] * num)).messages


def fall_silent(redis: Redis, silent_s: float = SILENT_S + 1) -> None:
    """Let that much time pass since all notes."""
    tags: list[Any] = redis.zrange(TIMES, 0, -1)
    for tag in tags:
        redis.zincrby(TIMES, -silent_s, tag)


def waiting(redis: Redis) -> list[Any]:
    """What waits, list by list, in the order in which it is taken."""
    return [raw for name in lists_of(QUEUE) for raw in reversed(redis.lrange(name, 0, -1))]


def test_each_goes_back_to_where_it_was_as_it_came(redis: Redis, clock: Clock) -> None:
    for lane in LANES:
        push(redis, *"ab", lane=lane)
    before = waiting(redis)
    assert len(take(redis, len(before))) == len(before)
    fall_silent(redis)
    assert clock.look_at(0) == len(before)
    with capture_logs() as lines:
        assert clock.look_at(SEEN_S) == 0
    assert (waiting(redis), redis.exists(TIMES)) == (before, 0)
    assert [one["num_messages"] for one in lines] == [len(before)]


def test_what_a_worker_says_that_it_holds_stays_with_it(redis: Redis, clock: Clock) -> None:
    push(redis, *"abc")
    held, *lost = take(redis, 3)
    fall_silent(redis)
    assert clock.look_at(0) == 3
    run_calls(redis, NOTED.hold([held.tag, "unknown"]))
    assert clock.look_at(SEEN_S) == 1
    assert waiting(redis) == [one.raw for one in lost]
    assert redis.zrange(TIMES, 0, -1) == [held.tag.encode()], "what is unknown is not noted"


def test_no_call_has_more_tags_than_one_may_have() -> None:
    """Managed Redis takes some 4,000 arguments."""
    tags = [f"tag:{number}:{QUEUE}" for number in range(10 * MAX_TAGS + 1)]
    lots = [call.command for call in NOTED.hold(tags)]
    assert max(map(len, lots)) < 2 * MAX_TAGS
    assert [tag for tag in chain.from_iterable(lots) if str(tag).startswith("tag:")] == tags


def test_a_silence_of_all_while_redis_was_away_is_no_loss(redis: Redis, clock: Clock) -> None:
    push(redis, "a")
    (one,) = take(redis, 1)
    for moment in range(20):
        fall_silent(redis)
        assert clock.look_at(moment) == 1
        run_calls(redis, NOTED.hold([one.tag]))
        assert clock.look_at(moment + 0.5) == 1


def test_a_clock_of_redis_that_was_put_back_hides_no_loss(redis: Redis, clock: Clock) -> None:
    push(redis, "a")
    take(redis, 1)
    fall_silent(redis, -3600)
    assert [clock.look_at(0), clock.look_at(SEEN_S)] == [1, 0]
    assert redis.llen(QUEUE) == 1


def test_more_than_one_call_moves_all_come_back_in_order(redis: Redis, clock: Clock) -> None:
    for size in (10, MAX_BYTES, 20, MAX_BYTES, 30):
        redis.lpush(QUEUE, message("x", "x" * size))
    push(redis, *map(str, range(MAX_TAGS)))
    before = waiting(redis)
    while take(redis, MAX_TAGS):
        pass
    fall_silent(redis)
    moments = iter(range(100))
    while clock.look_at(next(moments)):
        pass
    assert sorted(waiting(redis)) == sorted(before)
    run_dialogue(redis, NOTED.put_back([one.tag for one in take(redis, MAX_TAGS)][::-1]))


@pytest.mark.parametrize(("most_bytes", "num_calls"), [(1, 5), (MAX_BYTES, 1)])
def test_all_are_put_back_in_as_many_calls_as_it_takes(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, most_bytes: int, num_calls: int
) -> None:
    monkeypatch.setattr("llama_herd.worker.broker.message_notes.MAX_BYTES", most_bytes)
    run_dialogue(redis, NOTED.put_back(["unknown"]))  # loads the script
    push(redis, *"abcde")
    before = waiting(redis)
    tags = [one.tag for one in take(redis, 5)]
    redis.config_resetstat()
    assert run_dialogue(redis, NOTED.put_back(tags[::-1])) == PutBack(5, "")
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == num_calls
    assert (waiting(redis), redis.exists(NOTES, TIMES)) == (before, 0)


@pytest.mark.parametrize("at_end", [False, True])
def test_what_a_list_of_another_type_does_not_take_back_stays_noted(redis: Redis, at_end: bool) -> None:
    push(redis, "a")
    (one,) = take(redis, 1)
    redis.sadd(QUEUE, "somebody else's")
    done = run_dialogue(redis, NOTED.put_back([one.tag], at_end=at_end))
    assert (done.num, "WRONGTYPE" in done.refusal) == (0, True)
    assert redis.hlen(NOTES) == redis.zcard(TIMES) == 1


@pytest.mark.parametrize("lane", [NORMAL, LOW])
def test_a_message_whose_list_is_none_stays_noted_until_it_is_one(
    redis: Redis, clock: Clock, lane: str
) -> None:
    push(redis, "a", lane=lane)
    push(redis, "b", lane=LANES[0])
    take(redis, 2)
    redis.sadd(QUEUE + lane, "somebody else's")
    fall_silent(redis)
    clock.look_at(0)
    with capture_logs() as lines:
        assert clock.look_at(SEEN_S) == 1
    assert [(one["log_level"], one.get("num_messages")) for one in lines] == [("warning", 1), ("error", None)]
    assert "WRONGTYPE" in lines[1]["error"]
    assert redis.llen(QUEUE + LANES[0]) == 1
    assert clock.look_at(2 * SEEN_S) == 1, "it is not looked at again at once"
    redis.delete(QUEUE + lane)
    fall_silent(redis)
    assert [clock.look_at(60), clock.look_at(60 + SEEN_S)] == [1, 0]
    assert redis.llen(QUEUE + lane) == 1


def test_nothing_is_lost_while_redis_takes_no_writes(redis: Redis, clock: Clock) -> None:
    push(redis, "a")
    take(redis, 1)
    fall_silent(redis)
    clock.look_at(0)
    redis.config_set("min-replicas-to-write", 1)
    try:
        assert clock.look_at(SEEN_S) == 1
    finally:
        redis.config_set("min-replicas-to-write", 0)
    assert clock.look_at(SEEN_S + 1) == 0
    assert redis.llen(QUEUE) == 1


def note_as_kombu(message: str) -> str:
    return json.dumps([json.loads(message), "", QUEUE])


def note_as_take(message: str) -> str:
    return f'[{message},"","{QUEUE}"]'


@pytest.mark.parametrize("note", [note_as_kombu, note_as_take])
@pytest.mark.parametrize("tag", ["5f1c", "5f1c:0"])
def test_notes_that_do_not_name_a_list_lead_into_the_queue(
    redis: Redis, clock: Clock, note: Any, tag: str
) -> None:
    sent = message("own tag", '"quoted", "as in a note"]')
    redis.hset(NOTES, tag, note(sent))
    redis.zadd(TIMES, {tag: 1})
    assert [clock.look_at(0), clock.look_at(SEEN_S)] == [1, 0]
    (raw,) = waiting(redis)
    assert (json.loads(raw), redis.llen(QUEUE)) == (json.loads(sent), 1)


def test_a_note_of_no_message_is_kept_and_left_alone(redis: Redis, clock: Clock) -> None:
    redis.hset(NOTES, "tag", "no note")
    redis.zadd(TIMES, {"tag": 1, "gone": 1})
    assert [clock.look_at(0), clock.look_at(SEEN_S)] == [1, 1]
    assert (redis.hgetall(NOTES), redis.exists(TIMES)) == ({b"tag": b"no note"}, 0)
