"""A job whose deadline is over ends for whoever waits for it, though no worker is up."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from llama_herd.tasks import Client
from llama_herd.tasks.client import follower
from llama_herd.tasks.client.batch import window
from llama_herd.tasks.protocol.events import End
from tests.chaos.harness.patience import PATIENCE_S
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


def leave_late(herd: Herd) -> None:
    """A job that has begun, whose deadline is over and whose worker is silent."""
    herd.submit("a", JOB.model_copy(update={"deadline_ms": 2**52}))
    herd.claim("a")
    herd.emit("one", started("a"), token("a", 2, 0))
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    herd.fall_silent("a")


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
    result = client.result("a", timeout_s=PATIENCE_S)
    assert (result.finish_reason, result.text, result.worker) == ("deadline", "<2.1>", "w")
    assert herd.kinds("one", token("a", 3, 1)) == ["fenced"]


def test_a_worker_that_has_it_ends_it(client: Client, herd: Herd) -> None:
    """Also a worker that had lost Redis: it has the time from one look to the next."""
    leave_late(herd)
    with pytest.raises(TimeoutError):
        client.result("a", timeout_s=0)
    herd.renew("a", "one")
    with pytest.raises(TimeoutError):
        client.result("a", timeout_s=0.2)
    assert herd.field("a", "cancel") == "deadline", "it is asked to"
    assert herd.kinds("one", end("a", 3, 1, finish_reason="deadline")) == ["ok"]
    assert client.result("a").text == "<2.1>"


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
