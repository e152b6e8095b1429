"""One of all who have a message of a job that has ended tells Celery of it, and so sends its links."""

import pytest

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
    be_silent(ended)
    assert ask(ended, "second") == Settling()
    assert isinstance(ask(ended, "first"), Busy)


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


def test_of_a_job_that_is_purged_nothing_is_told(ended: Herd) -> None:
    ended_ms = ended.field("a", "ended_ms").encode()
    run_call(ended.redis, ended.ledger.purge("a"))
    assert ask(ended, "first") == Settled()
    assert ended.redis.hgetall(ended.ledger.job_key("a")) == {b"state": b"purged", b"ended_ms": ended_ms}
