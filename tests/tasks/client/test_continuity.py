"""A reader that goes on behind events that Redis has lost says so, or has read what is on record."""

import asyncio
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from typing import Any

import pytest
from redis import Redis

from llama_herd.error_code import ErrorCode
from llama_herd.errors import JobNotFound, StreamRewritten
from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.client.follower import FIRST_PAGE, SILENCE_S, Continuity, Follower
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.protocol.events import End, Event, Failure, Started, Token, parse_event
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.security.rights import Dialect
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.herd import Herd, end, started, token

JOB = "a"


class Stream:
    """Events as workers write them, of attempts that draw the same tokens, or others."""

    def __init__(self, draw: random.Random, num_choices: int) -> None:
        self.draw = draw
        self.events: list[Event] = []
        self.nums = [0] * num_choices

    @property
    def seq(self) -> int:
        return len(self.events) + 1

    def copy(self, num_events: int) -> "Stream":
        """What a replica has: the first events."""
        made = Stream(self.draw, len(self.nums))
        made.events = self.events[:num_events]
        for event in made.events:
            if isinstance(event, Token):
                made.nums[event.choice or 0] += len(event.ids)
        return made

    def attempt(self, epoch: int, num_events: int, first_id: int = 100) -> None:
        fields: Any = {"seq": self.seq, "job": JOB, "epoch": epoch, "seed": 7, "n": len(self.nums)}
        self.events.append(Started(**fields, at_ms=1, attempt=epoch, worker="w", model="tales"))
        for _ in range(num_events):
            choice = self.draw.randrange(len(self.nums))
            at, num = self.nums[choice], self.draw.choice((1, 1, 2, 3))
            ids = tuple(range(first_id + at, first_id + at + num))
            self.nums[choice] += num
            text = "".join(f"<{one}>" for one in ids)
            self.events.append(
                Token(seq=self.seq, job=JOB, epoch=epoch, i=at, ids=ids, text=text, choice=choice)
            )

    def end(self, epoch: int) -> None:
        text = "".join(event.text for event in self.events if isinstance(event, Token))
        self.events.append(
            End(
                seq=self.seq,
                job=JOB,
                epoch=epoch,
                finish_reason="stop",
                n=sum(self.nums),
                text_sha256=sha256(text.encode()).hexdigest(),
                attempts=epoch,
            )
        )


@pytest.mark.parametrize("seed", range(200))
def test_whoever_reads_across_a_lost_part_is_told_or_has_the_record(seed: int) -> None:
    draw = random.Random(seed)
    old = Stream(draw, draw.choice((1, 1, 2)))
    epoch = 1
    old.attempt(epoch, draw.randint(0, 6))
    if draw.random() < 0.5:
        old.attempt(epoch := 2, draw.randint(0, 6))
    new = old.copy(draw.randint(1, len(old.events)))
    lost_epoch = max(event.epoch for event in new.events) + 1  # it may be one that was read
    new.attempt(lost_epoch, draw.randint(0, 9), first_id=draw.choice((100, 900)))
    new.end(lost_epoch)
    follower = Follower(JOB)
    read = follower.stored(old.events)
    try:
        read += follower.stored(new.events)
    except StreamRewritten:
        return
    if follower.has_ended:
        assert ids_of(read) == ids_of(new.events)
    else:  # the stream on record is shorter than what was read: no end comes
        assert len(new.events) <= len(old.events)


@pytest.mark.parametrize("seed", range(200))
def test_whoever_goes_on_from_a_cursor_across_a_lost_part_is_told_or_has_the_record(seed: int) -> None:
    draw = random.Random(seed)
    old = Stream(draw, draw.choice((1, 1, 2)))
    old.attempt(1, draw.randint(0, 6))
    new = old.copy(draw.randint(0, len(old.events)))
    new.attempt(draw.choice((1, 2)), draw.randint(0, 9), first_id=900)
    new.end(2)
    for num_read, event in enumerate(old.events, 1):
        follower = Follower(JOB, after=event.cursor)
        if new.events[num_read - 1 : num_read] == [event]:
            assert follower.stored(new.events) == new.events[num_read:]
        elif num_read <= len(new.events):
            with pytest.raises(StreamRewritten, match=f"up to number {num_read},"):
                follower.stored(new.events[num_read - 1 :])
        else:
            assert follower.stored([]) == []


@pytest.mark.parametrize("event", [started(JOB, 4), token(JOB, 4, 2), end(JOB, 4, 2)])
def test_a_cursor_is_that_of_what_an_event_says(event: EmitEntry) -> None:
    found = parse_event(event.event)
    assert found.cursor == parse_event(found.to_json()).cursor
    assert found.cursor.startswith("4-")
    assert found.model_copy(update={"epoch": 9}).cursor != found.cursor


def test_outputs_that_say_the_same_have_other_cursors() -> None:
    """Two outputs of one prompt begin alike, and another worker may write them in another order."""
    first, second = (Token(seq=2, job=JOB, epoch=1, i=0, ids=(5,), text="a", choice=one) for one in (0, 1))
    assert first.cursor != second.cursor
    ended, cancelled = (
        End(seq=2, job=JOB, epoch=1, finish_reason=one, n=0, attempts=1) for one in ("stop", "cancelled")
    )
    assert ended.cursor != cancelled.cursor


def ids_of(events: Iterable[Event]) -> list[tuple[int, ...]]:
    result = Result.from_events(events)
    return [one.ids for one in result.choices or (result,)]


def test_a_stream_goes_on_however_it_began_and_ended() -> None:
    """Reads from the middle, an error behind events that are lost, and text that was withheld."""
    early, late = Token(seq=2, job=JOB, epoch=1, i=0, ids=(1, 2), text="a"), token(JOB, 5, 4, epoch=2)
    withheld = Token(seq=6, job=JOB, epoch=3, i=5, ids=(), text="")
    assert goes_on(
        Continuity(is_whole=False), parse_event(late.event), withheld, parse_event(end(JOB, 7, 9).event)
    )
    lost = Failure(code=ErrorCode.UNREADABLE, message="lost")
    failed = End(seq=3, job=JOB, epoch=1, finish_reason="error", n=1, attempts=1, error=lost)
    assert goes_on(Continuity(is_whole=True), parse_event(started(JOB).event), early, failed)


def goes_on(continuity: Continuity, *events: Event) -> bool:
    found = []
    for event in events:
        found.append(continuity.goes_on(event))
        continuity.note(event)
    return all(found)


def test_a_message_that_does_not_go_on_makes_the_reader_look_into_the_stream() -> None:
    """Every producer of the tenant may publish on the channel."""
    follower = Follower(JOB)
    first, forged, second = (
        parse_event(one.event) for one in (started(JOB), token(JOB, 2, 7), token(JOB, 2, 0))
    )
    assert follower.stored([first]) == [first]
    assert follower.heard([forged.to_json().encode()]) == []
    assert follower.is_behind
    assert follower.stored([second]) == [second]


def test_an_end_before_what_was_read_makes_the_reader_look_into_the_stream() -> None:
    """It is all that a reader hears who may read no records, and whose silence others look after."""
    follower = Follower(JOB)
    first, second, ended = (
        parse_event(one.event) for one in (started(JOB), token(JOB, 2, 0), end(JOB, 2, 0, epoch=2))
    )
    assert follower.stored([first, second]) == [first, second]
    assert follower.heard([ended.to_json().encode()]) == []
    assert follower.is_behind


def rewrite(redis: Redis, herd: Herd, entries: Iterable[EmitEntry]) -> None:
    """Let the stream be what a promoted replica has, and what was written there."""
    redis.delete(herd.ledger.events_key(JOB))
    for entry in entries:
        redis.xadd(herd.ledger.events_key(JOB), {"e": entry.event}, id=f"{entry.seq}-0")


READ = started(JOB), token(JOB, 2, 0), token(JOB, 3, 1), token(JOB, 4, 2)
#: Another worker had only the first two.
RECORDED = (
    *READ[:2],
    started(JOB, 3, 2, 1),
    *(token(JOB, 4 + i, 1 + i, epoch=2) for i in range(3)),
    end(JOB, 7, 4, 2),
)


@pytest.fixture
def read(redis: Redis, herd: Herd) -> None:
    herd.submit(JOB)
    herd.claimed(JOB)
    rewrite(redis, herd, READ)


@pytest.mark.redis
@pytest.mark.usefixtures("read")
def test_a_stream_says_that_it_was_rewritten_and_a_result_is_that_of_the_record(
    redis_url: str, redis: Redis, herd: Herd
) -> None:
    with Client(redis_url) as client:
        events = client.stream(JOB)
        assert [next(events).seq for _ in READ] == [1, 2, 3, 4]
        rewrite(redis, herd, RECORDED)
        with pytest.raises(StreamRewritten, match=f"events of job {JOB} up to number 4"):
            list(events)
        assert client.result(JOB).ids == (100, 101, 102, 103)


@pytest.mark.redis
@pytest.mark.usefixtures("read")
def test_a_job_that_ended_before_what_was_read_is_read_anew(redis_url: str, redis: Redis, herd: Herd) -> None:
    with Client(redis_url) as client:
        events = client.stream(JOB)
        assert [next(events).seq for _ in READ] == [1, 2, 3, 4]
        rewrite(redis, herd, (*READ[:2], end(JOB, 3, 1, epoch=2)))
        redis.hset(herd.ledger.job_key(JOB), mapping={"state": "done", "seq": 3})
        with pytest.raises(StreamRewritten, match=f"events of job {JOB} up to number 4"):
            list(events)
        assert client.result(JOB).ids == (100,)


@pytest.mark.redis
@pytest.mark.usefixtures("read")
def test_who_may_read_no_records_is_told_what_the_stream_says(redis_url: str, redis: Any, herd: Herd) -> None:
    line = Acl("default", ()).rights(Role.SUBSCRIBER).user("reader", "x", Dialect.FLAT)
    redis.execute_command("ACL", "SETUSER", *line.split()[1:])
    try:
        with Client(redis_url.replace("://", "://reader:x@")) as client:
            *_, last = islice(client.stream(JOB), len(READ))
            with pytest.raises(TimeoutError):
                next(client.stream(JOB, after=last.cursor, timeout_s=0.1))
            rewrite(redis, herd, (*READ[:2], end(JOB, 3, 1, epoch=2)))
            with pytest.raises(StreamRewritten, match="up to number 4"):
                next(client.stream(JOB, after=last.cursor, timeout_s=0.1))
            assert list(client.stream(JOB, after=last.seq, timeout_s=0.1)) == []
            rewrite(redis, herd, ())
            with pytest.raises(JobNotFound):
                next(client.stream(JOB, after=last.seq, timeout_s=0.1))
    finally:
        redis.execute_command("ACL", "DELUSER", "reader")


@pytest.mark.redis
@pytest.mark.usefixtures("read")
def test_a_reader_that_comes_again_is_told_that_what_it_has_was_lost(
    redis_url: str, redis: Redis, herd: Herd
) -> None:
    with Client(redis_url) as client:
        events = client.stream(JOB)
        kept, last = [next(events).cursor for _ in READ][1::2]
        rewrite(redis, herd, RECORDED)
        assert [event.seq for event in client.stream(JOB, after=kept)] == [3, 4, 5, 6, 7]
        with pytest.raises(StreamRewritten, match="up to number 4"):
            list(client.stream(JOB, after=last))
        rewrite(redis, herd, (*READ[:2], end(JOB, 3, 1, epoch=2)))
        redis.hset(herd.ledger.job_key(JOB), mapping={"state": "done", "seq": 3})
        with pytest.raises(StreamRewritten, match="up to number 4"):
            list(client.stream(JOB, after=last))
        (ended,) = client.stream(JOB, after=kept)
        assert list(client.stream(JOB, after=ended.cursor)) == []


@pytest.mark.redis
def test_a_page_from_a_cursor_on_is_followed_by_the_next(redis_url: str, herd: Herd) -> None:
    """The event that the cursor names is read again, so a full page brings one event less."""
    herd.submit(JOB)
    herd.claimed(JOB)
    herd.emit("one", started(JOB), *(token(JOB, 2 + i, i) for i in range(3 * FIRST_PAGE)))
    with Client(redis_url) as client:
        begin = parse_event(started(JOB).event).cursor
        seen = islice(client.stream(JOB, after=begin, timeout_s=SILENCE_S / 2), 3 * FIRST_PAGE)
        assert [event.seq for event in seen] == list(range(2, 2 + 3 * FIRST_PAGE))


def sync_result(url: str) -> Result:
    with Client(url) as client:
        return client.result(JOB)


def async_result(url: str) -> Result:
    async def ask() -> Result:
        async with AsyncClient(url) as client:
            return await client.result(JOB)

    return asyncio.run(ask())


@pytest.mark.redis
@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("result", [sync_result, async_result])
def test_a_result_that_is_waited_for_is_that_of_the_record(
    redis_url: str, redis: Redis, herd: Herd, result: Callable[[str], Result]
) -> None:
    redis.config_resetstat()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(result, redis_url)
        wait_until(lambda: "cmdstat_xrange" in redis.info("commandstats"), "it has read what is there")
        rewrite(redis, herd, RECORDED)
        redis.publish(herd.ledger.channel(JOB), RECORDED[-1].event)
        assert waiting.result(PATIENCE_S).ids == (100, 101, 102, 103)
