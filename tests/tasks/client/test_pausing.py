"""Pausing queues and draining workers by both clients, and what a client is told meanwhile."""

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from llama_herd.errors import BadInput, UnservedModel, WorkerNotFound
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus

pytestmark = pytest.mark.redis

#: Calls a method of a client by its name, and returns its answer.
Ask = Callable[..., Any]


def ask_sync(url: str, method: str, *args: Any, **given: Any) -> Any:
    with Client(url, model="m") as client:
        return getattr(client, method)(*args, **given)


def ask_async(url: str, method: str, *args: Any, **given: Any) -> Any:
    async def ask() -> Any:
        async with AsyncClient(url, model="m") as client:
            return await getattr(client, method)(*args, **given)

    return asyncio.run(ask())


both_clients = pytest.mark.parametrize("ask", [ask_sync, ask_async], ids=["sync", "async"])


def report(redis: Any, name: str, model: str = "m", state: str = "ready") -> None:
    """A worker is up."""
    status = WorkerStatus(name=name, state=state, model=model, device="cpu", slots=4)
    run_call(redis, Reports().report_worker(status))


@both_clients
def test_a_queue_is_paused_told_and_resumed(redis: Any, redis_url: str, ask: Ask) -> None:
    report(redis, "w@test")
    assert ask(redis_url, "pause", "m") is None
    (queue,) = ask(redis_url, "status").queues
    assert (queue.is_paused, queue.paused_until_ms, queue.is_unserved) == (True, None, False)
    until_ms = ask(redis_url, "pause", "m", for_s=60)
    status = ask(redis_url, "status")
    assert status.queues[0].paused_until_ms == until_ms
    assert 50_000 < until_ms - status.now_ms <= 60_000
    assert ask(redis_url, "resume", "m") is True
    assert not ask(redis_url, "status").queues[0].is_paused
    assert ask(redis_url, "resume", "m") is False


@both_clients
def test_a_worker_is_drained_by_its_name_and_no_other_is_taken_for_it(
    redis: Any, redis_url: str, ask: Ask
) -> None:
    report(redis, "herd-1@north")
    assert ask(redis_url, "drain", "herd-1@north") is None
    with pytest.raises(WorkerNotFound, match=r"no worker herd-1@nort is up. Did you mean herd-1@north\?"):
        ask(redis_url, "drain", "herd-1@nort")
    assert redis.zrange(Ledger().key("drained"), 0, -1) == [b"herd-1@north"]
    assert ask(redis_url, "undo_drain", "herd-1@north") is True
    assert ask(redis_url, "undo_drain", "herd-1@nort") is False


@both_clients
@pytest.mark.parametrize("for_s", [0, -1, 0.0001, 31_536_001, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_with_both_numbers(
    redis: Any, redis_url: str, ask: Ask, for_s: float
) -> None:
    report(redis, "w")
    for method, name in (("pause", "m"), ("drain", "w")):
        with pytest.raises(BadInput, match=r"for_s: must be 0.001 to 31536000 seconds, a year, got"):
            ask(redis_url, method, name, for_s=for_s)
    assert redis.exists(Ledger().key("paused"), Ledger().key("drained")) == 0


@pytest.mark.parametrize("model", ["", "acme:m", "m" * 129])
def test_no_name_reaches_another_tenants_queue(redis: Any, redis_url: str, model: str) -> None:
    for method in ("pause", "resume"):
        with pytest.raises(BadInput, match="model: must be 1 to 128 letters"):
            ask_sync(redis_url, method, model)


def jobs_of(url: str) -> list[tuple[str, str]]:
    return [(job.state, job.note) for job in ask_sync(url, "jobs")]


def test_jobs_of_a_paused_queue_are_queued_whether_or_not_a_worker_is_up(redis: Any, redis_url: str) -> None:
    with Client(redis_url, model="m") as client:
        client.pause("m", for_s=7_200)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.submit(prompt="x", job_id="a")
        note = "m is paused for another 1 h 59 m: its jobs wait. herd resume --model m ends that"
        assert jobs_of(redis_url) == [("queued", note)]
        assert [job.job_id for job in client.jobs(state="queued")] == ["a"]
        assert client.jobs(state="unserved") == []
        assert client.job("a").note == note
        report(redis, "w")
        assert jobs_of(redis_url) == [("queued", note)]
        client.resume("m")
        assert jobs_of(redis_url) == [("queued", "")]


def test_jobs_wait_by_a_note_of_their_own_while_all_workers_are_drained(redis: Any, redis_url: str) -> None:
    with Client(redis_url, model="m") as client:
        report(redis, "one", state="drained")
        report(redis, "two", state="draining")
        client.submit(prompt="x", job_id="a")
        (queue,) = client.status().queues
        assert (queue.workers, queue.drained) == (2, 2)
        note = "all workers of m are drained: its jobs wait. herd drain --undo WORKER ends that"
        assert jobs_of(redis_url) == [("queued", note)]
        report(redis, "three")
        assert jobs_of(redis_url) == [("queued", "")]


@pytest.mark.parametrize("is_paused", [False, True])
@both_clients
def test_nobody_is_told_that_a_paused_queue_is_not_served(
    redis: Any, redis_url: str, ask: Ask, is_paused: bool
) -> None:
    report(redis, "w", model="another")
    if is_paused:
        ask(redis_url, "pause", "m")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ask(redis_url, "submit", prompt="x")
        with Client(redis_url, model="m") as client:
            assert [one.error for one in client.submit_many([{"prompt": "x"}, {"prompt": "y"}])] == [
                None,
                None,
            ]
    assert [one.category for one in caught] == ([] if is_paused else [UnservedModel, UnservedModel])


def test_a_batch_does_not_take_a_paused_model_for_a_mistake(redis: Any, redis_url: str) -> None:
    report(redis, "w", model="another")
    with Client(redis_url, model="m") as client:
        for is_paused in (False, True):
            if is_paused:
                client.pause("m")
            batch = client.batch([{"prompt": "x"}], run_id=f"run-{is_paused}")
            for now_s in range(3):
                client._run(batch.window.round(100.0 * now_s))
            assert bool(batch.window.unserved) is not is_paused
            batch.cancel()
