"""RENEW, RELEASE and CANCEL: what holds a job, gives it back and ends it early."""

import json

import pytest

from llama_herd.tasks.ledger.answers import Cancellation, Ended, Release, Renewal, Renewed, Yours
from llama_herd.tasks.ledger.ledger import Notice, read_notice
from llama_herd.tasks.ledger.redis_call import redis_time_ms, run_call
from llama_herd.tasks.protocol.events import End
from tests.tasks.herd import Herd, end, started, token

pytestmark = pytest.mark.redis


@pytest.fixture
def claimed(herd: Herd) -> Herd:
    """Job `a`, owned by worker one."""
    herd.submit("a")
    herd.claim("a", "one")
    return herd


def release(herd: Herd, owner: str = "one", epoch: int = 1, **how: bool) -> Release:
    return run_call(herd.redis, herd.ledger.release("a", owner, epoch, **how))


def test_a_renewed_lease_lasts_as_long_as_a_new_one(claimed: Herd) -> None:
    claimed.pass_lease("a")
    before = run_call(claimed.redis, redis_time_ms())
    assert claimed.renew("a", "one") == Renewed(Renewal.OK)
    now_ms = int(claimed.field("a", "lease")) - claimed.ledger.lease_ms
    assert before <= now_ms <= run_call(claimed.redis, redis_time_ms())
    assert claimed.redis.zscore("herd:default:leases", "a") == int(claimed.field("a", "lease"))


@pytest.mark.parametrize(("owner", "epoch"), [("two", 1), ("one", 0), ("one", 2)])
def test_only_the_owner_of_this_epoch_renews(claimed: Herd, owner: str, epoch: int) -> None:
    claimed.pass_lease("a")
    assert claimed.renew("a", owner, epoch).kind is Renewal.FENCED
    assert claimed.field("a", "lease") == "1"


def test_a_cancelled_job_is_renewed_until_its_owner_ends_it(claimed: Herd) -> None:
    run_call(claimed.redis, claimed.ledger.cancel("a", "revoked"))
    claimed.pass_lease("a")
    assert claimed.renew("a", "one") == Renewed(Renewal.CANCELLED, "revoked")
    assert int(claimed.field("a", "lease")) > 1


def test_a_finished_job_gets_no_lease_again(claimed: Herd) -> None:
    claimed.emit("one", started("a"), end("a", 2, 0))
    assert claimed.renew("a", "one") == Renewed(Renewal.FINISHED, "done")
    assert claimed.redis.exists("herd:default:leases") == 0


def test_a_released_job_waits_anew(claimed: Herd) -> None:
    claimed.emit("one", started("a"), token("a", 2, 0))
    claimed.redis.hincrby(claimed.ledger.job_key("a"), "due_ms", -5_000)
    assert release(claimed) is Release.RELEASED
    due_ms = int(claimed.field("a", "due_ms"))
    assert claimed.redis.zscore("herd:default:pending", "a") >= due_ms + 5_000
    assert claimed.redis.exists("herd:default:leases") == 0
    assert len(claimed.messages()) == 1
    assert claimed.kinds("one", token("a", 3, 1)) == ["fenced"]
    again = claimed.claim("a", "two")
    assert isinstance(again, Yours)
    assert (again.epoch, again.n, again.seq) == (2, 1, 2)


def test_a_release_counts_against_nobody_but_forgives_no_death(claimed: Herd) -> None:
    claimed.emit("one", started("a"))
    claimed.pass_lease("a")
    assert claimed.claimed("a", "two").deaths == 1
    claimed.emit("two", started("a", seq=2, epoch=2))
    release(claimed, "two", 2)
    assert claimed.claimed("a", "one").deaths == 1


def test_a_release_after_the_death_of_a_server_counts_once_as_one_of_a_worker(claimed: Herd) -> None:
    for epoch in (1, 2):
        claimed.emit("one", started("a", seq=epoch, epoch=epoch))
        assert release(claimed, epoch=epoch, has_died=True) is Release.RELEASED
        assert release(claimed, epoch=epoch, has_died=True) is Release.FENCED
        assert claimed.claimed("a", "one").deaths == epoch
    claimed.emit("one", started("a", seq=3, epoch=3))
    release(claimed, epoch=3, has_died=True)
    assert isinstance(claimed.claim("a", "one"), Ended)
    assert "poisoned" in claimed.field("a", "error")


def test_a_release_can_bring_the_message_back_under_a_new_tag(claimed: Herd) -> None:
    release(claimed, push=True)
    tags = [json.loads(message)["properties"]["delivery_tag"] for message in claimed.messages()]
    assert len(set(tags)) == 2


def test_only_the_owner_of_this_epoch_releases(claimed: Herd) -> None:
    assert release(claimed, "two") is Release.FENCED
    assert release(claimed, "one", 2) is Release.FENCED
    assert release(claimed) is Release.RELEASED
    assert release(claimed) is Release.FENCED
    claimed.claim("a", "two")
    claimed.emit("two", started("a", epoch=2), end("a", 2, 0, epoch=2))
    assert release(claimed, "two", 2) is Release.FINISHED
    assert claimed.redis.exists("herd:default:pending") == 0


def test_a_job_that_waits_is_ended_by_the_cancel(herd: Herd) -> None:
    herd.submit("a")
    assert run_call(herd.redis, herd.ledger.cancel("a")) is Cancellation.CANCELLED
    (last,) = herd.events("a")
    assert isinstance(last, End)
    assert (last.finish_reason, last.seq, last.n, last.attempts) == ("cancelled", 1, 0, 0)
    assert herd.field("a", "state") == "cancelled"
    assert herd.redis.exists("herd:default:pending") == 0
    assert herd.redis.ttl(herd.ledger.job_key("a")) > 0
    assert herd.claim("a") is Ended.FINISHED


def test_a_late_cancel_is_a_deadline(herd: Herd) -> None:
    herd.submit("a")
    run_call(herd.redis, herd.ledger.cancel("a", "deadline"))
    (last,) = herd.events("a")
    assert isinstance(last, End)
    assert last.finish_reason == "deadline"
    assert herd.field("a", "state") == "failed"


def test_a_job_that_runs_is_ended_by_its_owner(claimed: Herd) -> None:
    subscriber = claimed.redis.pubsub(ignore_subscribe_messages=True)
    subscriber.subscribe(claimed.ledger.notices_to("one"))
    subscriber.get_message(timeout=20)
    assert run_call(claimed.redis, claimed.ledger.cancel("a", "revoked")) is Cancellation.ASKED
    assert run_call(claimed.redis, claimed.ledger.cancel("a", "deadline")) is Cancellation.ASKED
    notice = subscriber.get_message(timeout=20)
    assert notice is not None
    assert read_notice(notice["data"]) == Notice(job="a", cancel="revoked")
    assert claimed.field("a", "cancel") == "revoked"
    assert claimed.events("a") == []
    assert claimed.kinds("one", end("a", 1, 0, finish_reason="cancelled")) == ["ok"]


def test_a_job_whose_owner_died_is_ended_by_the_cancel(claimed: Herd) -> None:
    claimed.emit("one", started("a"), token("a", 2, 0))
    claimed.pass_lease("a")
    assert run_call(claimed.redis, claimed.ledger.cancel("a")) is Cancellation.CANCELLED
    last = claimed.events("a")[-1]
    assert isinstance(last, End)
    assert (last.seq, last.n, last.epoch, last.attempts) == (3, 1, 2, 1)
    assert claimed.kinds("one", token("a", 3, 1), end("a", 3, 1)) == ["fenced", "fenced"]


def test_a_released_job_that_was_cancelled_ends_at_the_next_claim(claimed: Herd) -> None:
    run_call(claimed.redis, claimed.ledger.cancel("a"))
    release(claimed)
    assert claimed.claim("a", "two") is Ended.CANCELLED


def test_the_end_is_not_cancelled(claimed: Herd) -> None:
    claimed.emit("one", started("a"), end("a", 2, 0))
    assert run_call(claimed.redis, claimed.ledger.cancel("a")) is Cancellation.FINISHED
    assert run_call(claimed.redis, claimed.ledger.cancel("zz")) is Cancellation.UNKNOWN
    assert len(claimed.events("a")) == 2
    assert claimed.redis.exists(claimed.ledger.job_key("zz")) == 0
