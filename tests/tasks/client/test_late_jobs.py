"""A job that is to end does so for whoever looks at it, though no worker is up or its own has died."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature
from threading import Barrier
from typing import Any

import pytest

from llama_herd.tasks import Client
from llama_herd.tasks.client import follower
from llama_herd.tasks.client.batch import window
from llama_herd.tasks.ledger import left_jobs
from llama_herd.tasks.ledger.answers import Cancellation
from llama_herd.tasks.protocol.events import End
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.client.test_readers import follow, readers_at, until
from tests.tasks.herd import JOB, Herd, end, started, token

pytestmark = pytest.mark.redis

LATE = JOB.model_copy(update={"deadline_ms": 1})


@pytest.fixture(autouse=True)
def _soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "SILENCE_S", 0.05)


def last_of(herd: Herd, job_id: str) -> End:
    """The one end of a job."""
    *others, last = herd.events(job_id)
    assert isinstance(last, End)
    assert not any(isinstance(one, End) for one in others)
    return last


@pytest.mark.parametrize("way", [Client.stream, Client.watch])
def test_a_late_job_ends_for_who_reads_it(client: Client, herd: Herd, way: Callable[..., Any]) -> None:
    herd.submit("a", LATE)
    *_, last = way(client, "a", timeout_s=PATIENCE_S)
    assert last == last_of(herd, "a")
    assert (last.finish_reason, last.seq, herd.field("a", "state")) == ("deadline", 1, "failed")
    assert herd.redis.zcard("herd:default:pending") == 0
    assert herd.redis.zscore("herd:default:untold", "a") is not None, "Celery is told by the next worker"


#: Whoever calls these does not ask how the job is.
ASK_NOTHING = ("place", "cancel", "purge")
LOOKS = [
    name
    for name, method in vars(Client).items()
    if callable(method) and [*signature(method).parameters][1:2] == ["job_id"] and name not in ASK_NOTHING
]


@pytest.mark.parametrize("name", [*LOOKS, "retry"])
def test_it_ends_for_who_looks_at_it_in_any_way(client: Client, herd: Herd, name: str) -> None:
    herd.submit("a", LATE)
    found = getattr(client, name)("a")
    assert not isinstance(found, Iterator) or list(found)
    assert last_of(herd, "a").finish_reason == "deadline"


def test_it_ends_once_its_time_is_over(client: Client) -> None:
    job_id = client.submit(prompt="x", timeout_s=0.3)
    with pytest.raises(TimeoutError):
        client.result(job_id, timeout_s=0.1)
    assert client.result(job_id).finish_reason == "deadline"


def test_one_look_is_enough_for_who_comes_again_and_again(client: Client, herd: Herd) -> None:
    herd.submit("a", LATE)
    assert client.result("a", timeout_s=0).finish_reason == "deadline"
    herd.submit("b", LATE)
    assert (client.job("b").state, last_of(herd, "b").finish_reason) == ("failed", "deadline")


@pytest.mark.parametrize(
    "way",
    [Client.status, Client.jobs, partial(Client.jobs, state="queued"), partial(Client.jobs, state="failed")],
)
def test_late_jobs_end_for_who_lists_them(client: Client, herd: Herd, way: Callable[[Client], Any]) -> None:
    herd.submit("a", LATE)
    herd.submit("b", JOB.model_copy(update={"deadline_ms": 2**52}))
    herd.claim("b")
    herd.put_back("b")  # to be tried again in an hour
    herd.redis.hset(herd.ledger.job_key("b"), "deadline_ms", 1)
    herd.redis.zadd("herd:default:pending:deadlines", {"b": 1}, xx=True)
    leave_late(herd, "c")
    way(client)
    for job_id in ("a", "b"):
        assert last_of(herd, job_id).finish_reason == "deadline"
    pass_moment(herd, "c")
    way(client)
    assert [one.job_id for one in client.jobs(state="failed")] == ["c", "b", "a"]
    assert client.jobs() == []
    assert client.status().pending == 0


def test_very_many_end_in_several_looks(client: Client, herd: Herd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(left_jobs.LEFT, "pending:deadlines", 2)
    herd.submit("later", JOB.model_copy(update={"deadline_ms": 2**52}))
    for number in range(5):
        herd.submit(f"job-{number}", LATE)
    assert [client.status().pending for _ in range(4)] == [4, 2, 1, 1]


def test_a_spoilt_key_hides_no_other_job(client: Client, herd: Herd) -> None:
    herd.submit("a", LATE)
    herd.submit("b", LATE)
    herd.redis.set(herd.ledger.job_key("a"), "spoilt")
    assert client.status().pending == 1
    assert last_of(herd, "b").finish_reason == "deadline"
    herd.redis.set("herd:default:pending:deadlines", "spoilt")
    assert client.status().pending == 1


def test_many_whose_worker_has_died_hide_none_that_is_to_end(client: Client, herd: Herd) -> None:
    leave_late(herd, "late")
    client.job("late")
    pass_moment(herd, "late")
    herd.redis.zadd("herd:default:leases", {"late": 2})  # the others have been silent for longer
    for number in range(120):
        herd.submit(f"job-{number}")
        herd.claim(f"job-{number}")
        herd.fall_silent(f"job-{number}")
    assert client.status().running == 120
    assert last_of(herd, "late").finish_reason == "deadline"


def leave_late(herd: Herd, job_id: str = "a") -> None:
    """A job that has begun, whose deadline is over and whose worker is silent."""
    herd.submit(job_id, JOB.model_copy(update={"deadline_ms": 2**52}))
    herd.claim(job_id)
    herd.emit("one", started(job_id), token(job_id, 2, 0))
    herd.redis.hset(herd.ledger.job_key(job_id), "deadline_ms", 1)
    herd.fall_silent(job_id)


def pass_moment(herd: Herd, job_id: str = "a") -> None:
    """Let the moment be over that a worker has for the end of a late job, which somebody has looked at."""
    assert herd.redis.hset(herd.ledger.job_key(job_id), "late_until", 1) == 0, "it has one"


@pytest.mark.parametrize("is_begun", [False, True])
def test_readers_of_one_loop_end_it_too(redis_url: str, herd: Herd, *, is_begun: bool) -> None:
    """Their look is one for all, and what it asks says nothing of deadlines."""

    async def scene() -> None:
        async with readers_at(redis_url) as readers:
            seen: list[list[Any]] = [[] for _ in range(3)]
            reading = [asyncio.create_task(follow(readers, redis_url, "a", one)) for one in seen]
            await until(lambda: all(seen), "all have read what is there")
            herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
            herd.fall_silent("a")
            if is_begun:
                await until(
                    lambda: herd.redis.hexists(herd.ledger.job_key("a"), "late_until"), "it has a moment"
                )
                pass_moment(herd)
            await asyncio.wait_for(asyncio.gather(*reading), PATIENCE_S)
        assert {one[-1].finish_reason for one in seen} == {last_of(herd, "a").finish_reason} == {"deadline"}

    herd.submit("a", JOB.model_copy(update={"timeout_s": 0.5}))
    if is_begun:
        herd.claim("a")
        herd.emit("one", started("a"), token("a", 2, 0))
    asyncio.run(scene())


def test_a_job_that_readers_of_one_loop_have_waited_for_ends_too(redis_url: str, herd: Herd) -> None:
    async def scene() -> None:
        async with readers_at(redis_url) as readers:
            seen: list[Any] = []
            reading = asyncio.create_task(follow(readers, redis_url, "a", seen))
            await until(lambda: any(not one._was_there for one in readers._readers), "it is missed")
            herd.submit("a", LATE)
            await asyncio.wait_for(reading, PATIENCE_S)
        assert seen[-1] == last_of(herd, "a")

    asyncio.run(scene())


def test_what_a_dead_worker_has_left_ends_with_its_text(client: Client, herd: Herd) -> None:
    leave_late(herd)
    assert client.job("a").state == "running"
    pass_moment(herd)
    result = client.result("a", timeout_s=PATIENCE_S)
    assert (result.finish_reason, result.text, result.worker) == ("deadline", "<2.1>", "w")
    assert herd.kinds("one", token("a", 3, 1)) == ["fenced"]


@pytest.mark.parametrize("lease_ms", [1, 2**52])
def test_a_worker_that_has_it_ends_it(client: Client, herd: Herd, lease_ms: int) -> None:
    """Also one that had lost Redis: it has a moment to write what it has in time, however many look."""
    leave_late(herd)
    herd.redis.hset(herd.ledger.job_key("a"), "lease", lease_ms)
    for _ in range(3):
        assert client.job("a").state == "running"
    with pytest.raises(TimeoutError):
        client.result("a", timeout_s=0.2)
    assert herd.kinds("one", token("a", 3, 1), end("a", 4, 2)) == ["ok", "ok"]
    assert client.result("a").text == "<2.1><3.1>"


def test_one_that_does_not_end_it_is_asked_to(client: Client, herd: Herd) -> None:
    leave_late(herd)
    herd.redis.hset(herd.ledger.job_key("a"), "lease", 2**52)
    client.job("a")
    pass_moment(herd)
    assert client.job("a").state == "running"
    assert herd.field("a", "cancel") == "deadline"


@pytest.mark.long  # for as long as its worker has
def test_who_asks_for_its_state_alone_hears_of_its_end(client: Client, herd: Herd) -> None:
    leave_late(herd)
    wait_until(lambda: client.job("a").finish_reason == "deadline", "its worker has had its moment")
    assert last_of(herd, "a").n == 1


def leave_cancelled(client: Client, herd: Herd) -> None:
    """A job whose worker dies before it hears of the cancel."""
    herd.submit("a")
    herd.claim("a")
    herd.emit("one", started("a"), token("a", 2, 0))
    assert client.cancel("a") is Cancellation.ASKED
    herd.fall_silent("a")


@pytest.mark.parametrize("way", [Client.result, Client.job])
def test_a_cancelled_job_ends_though_its_worker_has_died(
    client: Client, herd: Herd, way: Callable[..., Any]
) -> None:
    leave_cancelled(client, herd)
    assert way(client, "a").finish_reason == last_of(herd, "a").finish_reason == "cancelled"


def test_it_ends_for_readers_of_one_loop(redis_url: str, client: Client, herd: Herd) -> None:
    async def scene() -> None:
        async with readers_at(redis_url) as readers:
            seen: list[Any] = []
            reading = asyncio.create_task(follow(readers, redis_url, "a", seen))
            await until(lambda: seen, "it has read what is there")
            await until(lambda: client.cancel("a") is Cancellation.ASKED, "its worker is asked")
            herd.fall_silent("a")
            await asyncio.wait_for(reading, PATIENCE_S)
        assert seen[-1].finish_reason == last_of(herd, "a").finish_reason == "cancelled"

    herd.submit("a")
    herd.claim("a")
    herd.emit("one", started("a"))
    asyncio.run(scene())


def test_readers_and_a_worker_that_meet_write_one_end(client: Client, herd: Herd) -> None:
    job_ids, meet = [f"job-{number}" for number in range(20)], Barrier(3)
    for job_id in job_ids:
        herd.submit(job_id, LATE)

    def met(work: Callable[[], Any]) -> None:
        meet.wait()
        work()

    with ThreadPoolExecutor(3) as threads:
        for job_id in job_ids:
            reading = partial(client.result, job_id, timeout_s=PATIENCE_S)
            works = (reading, reading, partial(herd.claim, job_id))
            for done in [threads.submit(met, work) for work in works]:
                done.result()
            assert last_of(herd, job_id).finish_reason == "deadline"


def test_a_batch_ends_rows_whose_time_is_over(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "COUNT_WORKERS_S", 0.0)
    batch = client.batch(({"prompt": "x", "timeout_s": 0.05}, {"prompt": "y"}))
    item = next(batch)
    assert (item.index, item.failure and item.failure.code) == (0, "deadline")
    batch.cancel()
    assert [one.index for one in batch] == [1]


def test_a_cancelled_batch_ends_though_its_worker_has_died(
    client: Client, herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "COUNT_WORKERS_S", 0.0)
    batch = client.batch([{"prompt": "x"}], run_id="r")
    batch.poll()
    herd.claim("batch-r-0")
    batch.cancel()
    batch.poll()
    assert herd.field("batch-r-0", "cancel") == "cancelled", "its worker is asked"
    herd.fall_silent("batch-r-0")
    assert [item.result and item.result.finish_reason for item in batch] == ["cancelled"]
