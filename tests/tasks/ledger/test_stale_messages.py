"""Messages of jobs that ended while they waited go, also where no worker takes any."""

from collections.abc import Callable

import pytest

from llama_herd.tasks.ledger.redis_call import run_call
from tests.tasks.herd import QUEUE, Herd, end, ids, started

pytestmark = pytest.mark.redis

UNTOLD = "herd:default:untold"
#: With Celery's own tag. It carries its job, which no worker has claimed yet.
BARE = b'{"headers": {"id": "bare"}, "properties": {"delivery_tag": "5c1a7e6e-50a5-5d0e-9d1f-0e6f6c6c616d"}}'


def tell(herd: Herd) -> None:
    """Do as a worker that tells Celery of all that no worker had when it ended."""
    for job_id in herd.redis.zrange(UNTOLD, 0, -1):
        herd.redis.zincrby(UNTOLD, -5000, job_id)
    for job in run_call(herd.redis, herd.ledger.owed(256, 60_000)):
        run_call(herd.redis, herd.ledger.settle(job.job_id))


def cancel(herd: Herd, *job_ids: str) -> None:
    for job_id in job_ids:
        run_call(herd.redis, herd.ledger.cancel(job_id))


def submit(herd: Herd, *job_ids: str) -> None:
    for job_id in job_ids:
        herd.submit(job_id)


def test_nothing_is_left_of_a_thousand_jobs_that_ended_while_they_waited(herd: Herd) -> None:
    for round in range(4):
        names = [f"{round}-{number}" for number in range(256)]
        submit(herd, *names)
        cancel(herd, *names)
        tell(herd)
    assert not herd.redis.exists(QUEUE)


def test_no_more_are_left_than_stand_behind_one_that_waits(herd: Herd) -> None:
    submit(herd, "a", "b", "c", "d")
    cancel(herd, "a", "c")
    tell(herd)
    assert ids(herd) == ["b", "c", "d"]
    cancel(herd, "b")
    tell(herd)
    assert ids(herd) == ["d"]


def end_by_its_worker(herd: Herd) -> None:
    """Celery is not told yet: that is for whoever meets the message."""
    herd.claimed("a")
    herd.emit("one", started("a"), end("a", 2, 0))


def lose_its_record(herd: Herd) -> None:
    """It still waits, and a sweep ends it."""
    herd.redis.delete(herd.ledger.job_key("a"))


def lose_it_while_it_runs(herd: Herd) -> None:
    herd.claimed("a")
    lose_its_record(herd)


def bring_it_bare(herd: Herd) -> None:
    herd.redis.rpush(QUEUE, BARE)


def begin_anew(herd: Herd) -> None:
    """Celery is still to be told of the job that had its id before."""
    herd.redis.zadd(UNTOLD, {"a": 2**45})


def run_anew(herd: Herd) -> None:
    begin_anew(herd)
    herd.claimed("a")


@pytest.mark.parametrize(
    "act",
    [end_by_its_worker, lose_its_record, lose_it_while_it_runs, bring_it_bare, begin_anew, run_anew],
)
def test_a_message_stays_that_somebody_has_to_meet(herd: Herd, act: Callable[[Herd], None]) -> None:
    submit(herd, "a", "b")
    act(herd)
    before = herd.messages()
    cancel(herd, "b")
    tell(herd)
    assert herd.messages() == before


def test_what_a_worker_will_take_is_left_to_it(herd: Herd) -> None:
    herd.redis.zadd("herd:default:served", {QUEUE: 1000 * herd.redis.time()[0]})
    submit(herd, "a", "b")
    cancel(herd, "a", "b")
    tell(herd)
    assert ids(herd) == ["a", "b"]
    herd.redis.zincrby("herd:default:served", -20_000, QUEUE)
    submit(herd, "c")
    cancel(herd, "c")
    tell(herd)
    assert ids(herd) == []


def purge_it(herd: Herd) -> None:
    run_call(herd.redis, herd.ledger.purge("a"))


def forget_it(herd: Herd) -> None:
    """It has ended, and its record was kept for as long as it was to be."""
    end_by_its_worker(herd)
    herd.redis.delete(herd.ledger.job_key("a"))


def owe_its_result(herd: Herd) -> None:
    end_by_its_worker(herd)
    run_call(herd.redis, herd.ledger.owe("a", 60_000, has_sent_links=False))


@pytest.mark.parametrize("act", [purge_it, forget_it, owe_its_result])
def test_a_message_goes_that_nobody_has_to_meet(herd: Herd, act: Callable[[Herd], None]) -> None:
    submit(herd, "a", "b")
    act(herd)
    cancel(herd, "b")
    tell(herd)
    assert not herd.redis.exists(QUEUE)


def test_a_queue_that_is_no_list_keeps_nothing_from_being_told(herd: Herd) -> None:
    submit(herd, "a", "b")
    herd.redis.set(QUEUE, "somebody else's")
    cancel(herd, "a", "b")
    tell(herd)
    assert not herd.redis.exists(UNTOLD)


def test_the_queue_of_another_tenant_is_left_alone(herd: Herd) -> None:
    """A user who can write a tenant's records could name any queue there."""
    submit(herd, "a")
    cancel(herd, "a")
    message = herd.messages()[0]
    herd.redis.lpush("herd.acme:tales", message)
    herd.redis.hset(herd.ledger.job_key("a"), "queue", "herd.acme:tales")
    tell(herd)
    assert herd.redis.lrange("herd.acme:tales", 0, -1) == [message]
