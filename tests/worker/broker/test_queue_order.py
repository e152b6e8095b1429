"""Whose message is taken next by a worker with several queues."""

from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import pytest
from celery.worker import state
from celery.worker.request import Request
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.message import Message
from redis import Redis

from llama_herd.tasks.app import make_app
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.protocol.priority import LANES, LOW, NORMAL, TURN, URGENT
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.queue_channel import QueueChannel
from llama_herd.worker.broker.queue_order import QueueOrder, QueuePlaces
from llama_herd.worker.broker.queue_transport import QueueTransport

pytestmark = pytest.mark.redis

NAMES = ("herd.acme:m", "herd.globex:m", "herd.initech:m")


class Taker:
    """Takes messages one by one, and has them in hand until they are settled."""

    def __init__(self, connection: Connection) -> None:
        self.in_hand: list[Request] = []
        self.num_taken = 0
        self._app = make_app(Settings())
        self._app.loader.import_default_modules()
        self.channel: QueueChannel = connection.default_channel
        self._connection = connection
        queues = [Queue(name, Exchange(name), name) for name in NAMES]
        self._producer = Producer(connection.channel())
        for queue in queues:
            queue(self._producer.channel).declare()
        self._consumer = Consumer(self.channel, queues, on_message=self._take)
        self._consumer.consume()

    def push(self, name: str, num: int, lane: str = NORMAL) -> None:
        for _ in range(num):
            headers = {"id": str(uuid4()), "task": TASK_NAME}
            self._producer.publish([[], {}, {}], exchange=name, routing_key=name, headers=headers)
            if lane:
                self._producer.channel.client.lmove(name, name + lane, "LEFT", "LEFT")

    def take(self, num: int, timeout_s: float = 60) -> list[str]:
        """The queues of the next messages."""
        until = self.num_taken + num
        self._consumer.qos(prefetch_count=until)  # none is ever acked
        while self.num_taken < until:
            self._connection.drain_events(timeout=timeout_s)
        return [queue_of(request) for request in self.in_hand[-num:]]

    def lane_of_next(self, name: str) -> str:
        """Which list of a queue gives the next message, when the other queues are closed."""
        self.channel.pauses = name.__ne__
        client = self._producer.channel.client
        before = {lane: client.llen(name + lane) for lane in LANES}
        self.take(1)
        (lane,) = (lane for lane in LANES if client.llen(name + lane) < before[lane])
        return lane

    def settle(self, name: str) -> None:
        for request in [one for one in self.in_hand if queue_of(one) == name]:
            state.task_ready(request)
            self.in_hand.remove(request)

    def _take(self, message: Message) -> None:
        request = Request(message, app=self._app, task=self._app.tasks[TASK_NAME])
        self.in_hand.append(request)
        self.num_taken += 1
        state.task_reserved(request)


def queue_of(request: Request) -> str:
    return str(request.delivery_info["routing_key"])


def test_a_lot_asks_the_lists_as_its_messages_would_one_after_the_other() -> None:
    order, one_by_one = QueueOrder(), []
    for _ in range(3):
        order.note("herd.m")
    lot = order.of_next("herd.m", 10 * TURN)
    for _ in lot:
        one_by_one += order.of_next("herd.m", 1)
        order.note("herd.m")
    assert lot == one_by_one


@pytest.fixture
def taker(redis_url: str) -> Iterator[Taker]:
    with Connection(redis_url, transport=QueueTransport) as connection:
        taker = Taker(connection)
        for name in NAMES:
            taker.push(name, 10)
        yield taker
        for name in NAMES:
            taker.settle(name)


def test_queues_take_turns(taker: Taker) -> None:
    assert [Counter(taker.take(3)) for _ in range(3)] == [Counter(NAMES)] * 3


def test_who_has_fewest_in_hand_comes_first(taker: Taker) -> None:
    taker.take(9)
    taker.settle(NAMES[1])
    assert taker.take(3) == [NAMES[1]] * 3
    assert Counter(taker.take(3)) == Counter(NAMES)


def test_the_urgent_come_first_whatever_waits(taker: Taker) -> None:
    taker.push(NAMES[0], 3, URGENT)
    taker.push(NAMES[0], 3, LOW)
    assert [taker.lane_of_next(NAMES[0]) for _ in range(4)] == [URGENT, URGENT, URGENT, NORMAL]


def test_a_backlog_of_urgent_ones_leaves_each_eighth_message_to_the_others(taker: Taker) -> None:
    taker.push(NAMES[0], 2 * TURN, URGENT)
    lanes = Counter(taker.lane_of_next(NAMES[0]) for _ in range(2 * TURN))
    assert lanes == {URGENT: 2 * (TURN - 1), NORMAL: 2}


def test_a_tenant_gets_no_more_by_calling_all_of_its_jobs_urgent(taker: Taker) -> None:
    taker.push(NAMES[0], 10, URGENT)
    assert Counter(taker.take(9)) == Counter(dict.fromkeys(NAMES, 3))


def test_queues_take_turns_when_each_message_is_settled_at_once(taker: Taker) -> None:
    taken = Counter[str]()
    for _ in range(9):
        (name,) = taker.take(1)
        taker.settle(name)
        taken[name] += 1
    assert taken == Counter(dict.fromkeys(NAMES, 3))


def test_a_closed_queue_is_left_out_and_comes_back_first(taker: Taker) -> None:
    taker.channel.pauses = NAMES[0].__eq__
    assert Counter(taker.take(6)) == Counter({NAMES[1]: 3, NAMES[2]: 3})
    taker.channel.pauses = lambda _: False
    assert taker.take(3) == [NAMES[0]] * 3


@pytest.mark.long
def test_nothing_is_asked_for_while_all_queues_are_closed(taker: Taker) -> None:
    taker.channel.pauses = lambda _: True
    assert not taker.channel.has_room
    with pytest.raises(TimeoutError):
        taker.take(1, timeout_s=0.5)


def test_a_queue_that_was_left_out_is_asked_again_once_it_has_places(taker: Taker, redis: Redis) -> None:
    redis.delete(*NAMES[1:])
    taker.channel.places.now = QueuePlaces(num=4, num_own=1)
    taker.channel.longest_wait_s = 60
    assert taker.take(2) == [NAMES[0]] * 2
    with pytest.raises(TimeoutError):
        taker.take(1, timeout_s=0.1)  # only the others are asked from now on
    taker.settle(NAMES[0])
    assert taker.take(1, timeout_s=30) == [NAMES[0]]


def num_looks(redis: Redis) -> int:
    return int(redis.info("commandstats")["cmdstat_exists"]["calls"])


def test_one_look_takes_what_is_a_queues_turn(taker: Taker, redis: Redis) -> None:
    taker.take(12)
    taker.settle(NAMES[0])
    before = num_looks(redis)
    assert taker.take(4) == [NAMES[0]] * 4
    assert num_looks(redis) == before + len(NAMES), "the others have four in hand, too, from here on"
    assert Counter(taker.take(3)) == Counter(NAMES)


def test_a_queue_gives_all_at_once_while_no_other_has_any(taker: Taker, redis: Redis) -> None:
    taker.take(6)
    redis.delete(*NAMES[1:])
    before = num_looks(redis)
    assert taker.take(8) == [NAMES[0]] * 8
    assert num_looks(redis) == before + len(NAMES)


PLACES = QueuePlaces(num=20, num_own=4)


@pytest.mark.parametrize("num_held", range(13))
def test_as_many_are_left_as_are_open_one_after_the_other(num_held: int) -> None:
    held, num_taken = Counter(a=num_held, b=2, c=7), 0
    while "a" in PLACES.open_to("abc", held + Counter(a=num_taken)):
        num_taken += 1
    assert PLACES.left_to("a", "abc", held) == num_taken


def test_one_queue_alone_may_hold_all_but_what_is_the_others_own() -> None:
    assert PLACES.open_to("abc", Counter(a=11)) == {*"abc"}
    assert PLACES.open_to("abc", Counter(a=12)) == {*"bc"}


def test_however_much_all_others_hold_a_queue_keeps_its_own_places() -> None:
    held = Counter[str]()
    while allowed := PLACES.open_to("abc", held) - {"c"}:
        held[min(allowed)] += 1
    assert held == {"a": 12, "b": 4}
    for num in range(4):
        assert PLACES.open_to("abc", held + Counter(c=num)) == {"c"}
    assert PLACES.open_to("abc", held + Counter(c=4)) == set()


@pytest.mark.long
def test_a_queue_with_a_list_that_is_none_is_left_out_until_it_is_one(taker: Taker, redis: Redis) -> None:
    spoilt = NAMES[0] + URGENT
    redis.sadd(spoilt, "x")
    assert Counter(taker.take(20)) == Counter({NAMES[1]: 10, NAMES[2]: 10})
    assert taker.channel.spoilt.found == {NAMES[0]: (spoilt, "set")}
    redis.delete(spoilt)
    assert taker.take(10) == [NAMES[0]] * 10
    assert taker.channel.spoilt.found == {}


def test_silence_is_no_silence_while_no_queue_may_be_asked(taker: Taker, redis: Redis) -> None:
    for name in NAMES:
        redis.sadd(name + URGENT, "x")
    while set(taker.channel.spoilt.found) != {*NAMES}:
        with pytest.raises(TimeoutError):
            taker.take(1, timeout_s=0.1)
    num_polls = taker.channel.num_polls
    with pytest.raises(TimeoutError):
        taker.take(1, timeout_s=0.1)
    assert taker.channel.num_polls > num_polls


def test_what_cannot_be_put_back_keeps_nothing_else_from_it(redis_url: str, redis: Redis) -> None:
    with Connection(redis_url, transport=QueueTransport) as connection:
        taker = Taker(connection)
        for name in NAMES[:2]:
            taker.push(name, 1)
        taker.take(2)
        redis.delete(NAMES[0])
        redis.sadd(NAMES[0], "x")
        for request in taker.in_hand:
            state.task_ready(request)
    assert redis.llen(NAMES[1]) == 1
