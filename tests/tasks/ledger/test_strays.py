"""Messages of producers whose separator is not kombu's come into the lists that workers ask."""

from typing import Any

import pytest
from hypothesis import strategies as st
from kombu import Connection, Exchange, Producer, Queue
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.overview import Overview
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.sweep import MAX_BYTES, MAX_MOVES, binding_key, gather_strays
from llama_herd.tasks.protocol.priority import SEPARATOR, lists_of
from tests.examples import EXAMPLES, for_any
from tests.tasks.herd import QUEUE

pytestmark = pytest.mark.redis

#: ':' makes names of models of another tenant, '-' and 's' those of other models.
separators = st.sampled_from([":", "::", "-", "s", ";", "\x00", "%", "*"]) | st.text(
    st.characters(codec="utf-8", exclude_characters="\x06"), min_size=1, max_size=4
)
steps = st.integers(1, 10).map(lambda num: list(range(num))) | st.sets(
    st.integers(0, 9), min_size=1, max_size=10
).map(sorted)


def send(url: str, queue: str, priorities: range, **options: Any) -> None:
    """Send as Celery does: the queue is declared, and the message goes to it by its name."""
    with Connection(url, transport_options=options) as connection:
        producer = Producer(connection.channel())
        declared = [Queue(queue, Exchange(queue), queue)]
        for priority in priorities:
            producer.publish(str(priority), routing_key=queue, priority=priority, declare=declared)


def bodies(redis: Redis, *lists: str) -> int:
    return sum(redis.llen(name) for name in lists)


@pytest.fixture(scope="module")
def url() -> Any:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.mark.long
@pytest.mark.parametrize("num_examples", EXAMPLES)
def test_whatever_separator_and_steps_a_producer_has_its_messages_come_into_the_queue(
    url: str, num_examples: int
) -> None:
    @for_any(separators, steps)
    def law(sep: str, priority_steps: list[int]) -> None:
        with Redis.from_url(url) as redis:
            redis.flushall()
            send(url, QUEUE, range(10), sep=sep, priority_steps=priority_steps)
            (counts,) = run_call(redis, Overview().counts(QUEUE)).queues
            assert counts.num_messages == 10
            num_plain = redis.llen(QUEUE)
            assert counts.num_stray == 10 - num_plain
            moved = run_call(redis, gather_strays([QUEUE]))
            assert [(one.separator, one.num_moved) for one in moved] == [(sep, 10 - num_plain)]
            assert bodies(redis, *lists_of(QUEUE)) == 10
            with Connection(url, transport_options={"priority_steps": priority_steps}) as connection:
                channel = connection.channel()
                for number in range(10):
                    name = channel._q_for_pri(QUEUE, number)
                    assert redis.llen(name) > 0
            assert run_call(redis, Overview().counts(QUEUE)).queues[0].num_stray == 0

    law(num_examples)


def test_a_message_of_another_queue_stays_where_it_is(url: str) -> None:
    """With ':' the list of a priority has the name of a model of the tenant `tales`."""
    with Redis.from_url(url) as redis:
        redis.flushall()
        send(url, f"{QUEUE}:3", range(2))
        send(url, QUEUE, range(3, 4), sep=":")
        assert run_call(redis, gather_strays([QUEUE]))[0].num_moved == 0
        redis.rpop(f"{QUEUE}:3", 2)
        assert run_call(redis, gather_strays([QUEUE]))[0].num_moved == 1
        assert redis.llen(f"{QUEUE}{SEPARATOR}3") == 1


@pytest.mark.parametrize(
    "member", ["", QUEUE, QUEUE * 2, f"{QUEUE};{QUEUE}", f"{QUEUE};;{QUEUE}x", f"{QUEUE}{';' * 99}{QUEUE}"]
)
def test_a_binding_that_names_no_separator_is_passed_over(url: str, member: str) -> None:
    with Redis.from_url(url) as redis:
        redis.flushall()
        redis.sadd(binding_key(QUEUE), member)
        assert run_call(redis, gather_strays([QUEUE])) == []


def test_eight_separators_of_sixteen_bytes_count_and_what_is_beyond_does_not(url: str) -> None:
    with Redis.from_url(url) as redis:
        redis.flushall()
        longest = [f"{number}".ljust(16, ";") for number in range(9)]
        redis.sadd(binding_key(QUEUE), *(f"{QUEUE}{sep};{sep};{QUEUE}" for sep in longest))
        assert run_call(redis, gather_strays([QUEUE])) == []
        redis.sadd(binding_key(QUEUE), *(f"{QUEUE}{sep}{sep}{QUEUE}" for sep in longest))
        found = {one.separator for one in run_call(redis, gather_strays([QUEUE]))}
        assert len(found) == 8
        assert found < set(longest)


def test_keys_that_are_no_lists_and_no_sets_harm_no_other_queue(url: str) -> None:
    with Redis.from_url(url) as redis:
        redis.flushall()
        redis.set(binding_key("herd.spoilt"), "x")
        for queue in ("herd.a", "herd.b", "herd.c"):
            send(url, queue, range(1, 2), sep=";", priority_steps=[0, 1])
        redis.delete("herd.a;1")
        redis.set("herd.a;1", "x")
        redis.set(f"herd.b{SEPARATOR}1", "x")
        found = run_call(redis, gather_strays(["herd.spoilt", "herd.a", "herd.b", "herd.c"]))
        assert [(one.queue, one.num_moved) for one in found] == [("herd.a", 0), ("herd.b", 0), ("herd.c", 1)]
        assert redis.llen("herd.b;1") == 1


def test_a_long_backlog_is_moved_in_parts_and_keeps_its_order(url: str) -> None:
    with Redis.from_url(url) as redis:
        redis.flushall()
        send(url, QUEUE, range(1, 2), sep=";", priority_steps=[0, 1])
        message = redis.lpop(f"{QUEUE};1")
        assert isinstance(message, bytes)
        backlog = [message + b" " * number for number in range(MAX_MOVES + 1)]
        redis.lpush(f"{QUEUE};1", *backlog)
        found = [run_call(redis, gather_strays([QUEUE]))[0] for _ in range(3)]
        assert [(one.num_moved, one.has_more) for one in found] == [(MAX_MOVES, True), (1, False), (0, False)]
        assert redis.lrange(f"{QUEUE}{SEPARATOR}1", 0, -1) == backlog[::-1]


def test_a_backlog_of_long_messages_is_moved_in_parts(url: str) -> None:
    with Redis.from_url(url) as redis:
        redis.flushall()
        send(url, QUEUE, range(1, 2), sep=";", priority_steps=[0, 1])
        message = redis.lpop(f"{QUEUE};1")
        assert isinstance(message, bytes)
        redis.lpush(f"{QUEUE};1", *(message.ljust(MAX_BYTES // 2) for _ in range(3)))
        found = [run_call(redis, gather_strays([QUEUE]))[0] for _ in range(2)]
        assert [(one.num_moved, one.has_more) for one in found] == [(2, True), (1, False)]
