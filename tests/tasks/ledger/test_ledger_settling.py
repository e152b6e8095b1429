"""One of all who have a message of a job that has ended tells Celery of it, and so sends its links."""

from collections.abc import Iterator

import pytest
from redis.client import PubSub

from llama_herd.tasks.ledger.answers import Busy, Settled, Settling
from llama_herd.tasks.ledger.redis_call import run_call
from tests.tasks.herd import Herd, end, started

pytestmark = pytest.mark.redis

HOLD_MS = 60_000


@pytest.fixture
def ended(herd: Herd) -> Herd:
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"), end("a", 2, 0))
    return herd


def ask(herd: Herd, word: str) -> Settling | Busy | Settled:
    return run_call(herd.redis, herd.ledger.settling("a", word, HOLD_MS))


def be_silent(herd: Herd) -> None:
    """As if the one who has the job had said nothing for as long as it may."""
    herd.redis.hset(herd.ledger.job_key("a"), "settling_until", 1)


def test_who_asks_first_tells_celery_and_may_ask_again(ended: Herd) -> None:
    assert ask(ended, "first") == Settling()
    answer = ask(ended, "second")
    assert isinstance(answer, Busy)
    assert 0 < answer.remaining_ms <= HOLD_MS
    assert not ended.redis.hexists(ended.ledger.job_key("a"), "settling_late"), "its turn is not over"
    assert ask(ended, "first") == Settling()
    assert ended.redis.ttl(ended.ledger.job_key("a")) > 0


def test_who_asks_after_the_end_has_nothing_to_do(ended: Herd) -> None:
    ask(ended, "first")
    run_call(ended.redis, ended.ledger.settle("a"))
    assert ask(ended, "first") == ask(ended, "second") == Settled()
    assert not ended.redis.hexists(ended.ledger.job_key("a"), "settling")


def test_who_falls_silent_is_waited_for_once_and_then_followed(ended: Herd) -> None:
    ask(ended, "first")
    be_silent(ended)
    assert ask(ended, "second") == Busy(HOLD_MS)
    assert isinstance(ask(ended, "second"), Busy)
    be_silent(ended)
    assert ask(ended, "second") == Settling()
    assert isinstance(ask(ended, "first"), Busy)


def test_who_asks_often_waits_no_longer(ended: Herd) -> None:
    ask(ended, "first")
    until_ms = ended.field("a", "settling_until")
    for _ in range(3):
        assert isinstance(ask(ended, "second"), Busy)
        assert ended.field("a", "settling_until") == until_ms


def test_who_speaks_again_keeps_the_job(ended: Herd) -> None:
    ask(ended, "first")
    be_silent(ended)
    ask(ended, "second")
    assert ask(ended, "first") == Settling()
    be_silent(ended)
    assert ask(ended, "second") == Busy(HOLD_MS)


def test_of_a_job_that_is_forgotten_nothing_is_noted(herd: Herd) -> None:
    assert ask(herd, "first") == ask(herd, "second") == Settling()
    assert herd.redis.keys() == []
    assert not run_call(herd.redis, herd.ledger.settle("a"))
    assert herd.redis.keys() == []


def test_of_a_job_that_is_purged_nothing_is_told(ended: Herd) -> None:
    ended_ms = ended.field("a", "ended_ms").encode()
    run_call(ended.redis, ended.ledger.purge("a"))
    assert ask(ended, "first") == Settled()
    assert ended.redis.hgetall(ended.ledger.job_key("a")) == {b"state": b"purged", b"ended_ms": ended_ms}


@pytest.fixture
def heard(ended: Herd) -> Iterator[PubSub]:
    """A client that waits for the job's result, as Celery's do."""
    with ended.redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(ended.ledger.result_key("a"))
        assert heard.get_message(timeout=10) is None  # it has subscribed
        yield heard


def settle(herd: Herd) -> bool:
    return run_call(herd.redis, herd.ledger.settle("a", b"a tale", 60))


def last_word(herd: Herd, heard: PubSub) -> list[bytes]:
    """What was announced until now."""
    key = herd.ledger.result_key("a")
    herd.redis.publish(key, b"nothing more")
    return list(iter(lambda: heard.get_message(timeout=10)["data"], b"nothing more"))


@pytest.mark.parametrize("num_times", [1, 3])
def test_a_result_is_announced_once_however_often_it_is_offered(
    ended: Herd, heard: PubSub, num_times: int
) -> None:
    assert [settle(ended) for _ in range(num_times)] == [False] * num_times
    key = ended.ledger.result_key("a")
    assert (ended.redis.get(key), 0 < ended.redis.ttl(key) <= 60) == (b"a tale", True)
    assert last_word(ended, heard) == [b"a tale"]
    assert ask(ended, "another") == Settled()


def test_a_result_without_an_end_to_its_life_is_kept_for_ever(ended: Herd) -> None:
    run_call(ended.redis, ended.ledger.settle("a", b"a tale", 0))
    assert ended.redis.ttl(ended.ledger.result_key("a")) == -1


@pytest.mark.parametrize("then", ["purged", "submitted again"])
def test_a_job_that_is_no_longer_the_one_that_ended_gets_no_result(
    ended: Herd, heard: PubSub, then: str
) -> None:
    run_call(ended.redis, ended.ledger.purge("a"))
    if then == "submitted again":
        ended.redis.delete(ended.ledger.job_key("a"))
        ended.submit("a")
    assert settle(ended) == (then == "purged")
    assert not ended.redis.exists(ended.ledger.result_key("a"))
    assert not ended.redis.hexists(ended.ledger.job_key("a"), "settled")
    assert last_word(ended, heard) == []
