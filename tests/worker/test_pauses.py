"""A paused queue waits and a drained worker idles: with real workers, over restarts of these and of Redis."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.job_fields import SamplingFields
from tests.durable_redis import DurableRedis
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(180)]

SHORT: SamplingFields = {"max_tokens": 3, "temperature": 0}
ENDLESS: SamplingFields = {"max_tokens": 4096, "temperature": 0}
#: Of a worker whose jobs are to run as long as the test needs them, also on a busy machine.
STEP_S = 0.02
#: How soon a worker takes messages no more, or again: the rest of a poll, and what a busy machine adds.
SOON_S = 15.0

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(redis_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts workers of the model `m`, which never ends by itself."""
    model = write_tiny_gguf(tmp_path / "m.gguf", eos=False, context_length=8192)
    with ExitStack() as stack:

        def start(name: str, url: str = redis_url, **settings: object) -> WorkerProcess:
            log = tmp_path / f"{name}{len(list(tmp_path.glob('*.log')))}.log"
            worker = WorkerProcess(url, model, name, log, slots=2, **settings)  # type: ignore[arg-type]
            worker.start()
            stack.callback(worker.kill)
            return worker

        yield start


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, model="m") as client:
        yield client


def state_of(client: Client, worker: WorkerProcess) -> str:
    return next((one.state for one in client.workers() if one.name == worker.name), "gone")


def submit(client: Client, sampling: SamplingFields = SHORT) -> str:
    return client.submit(prompt="a tale", sampling=sampling, flush_ms=0)


def has_run(client: Client, job_id: str) -> bool:
    return client.job(job_id).attempts > 0


def wait_for_state(client: Client, worker: WorkerProcess, state: str) -> None:
    wait_until(lambda: state_of(client, worker) == state, f"{worker.name} is {state}")


def wait_for_pause(client: Client, worker: WorkerProcess) -> None:
    """The worker has heard of a pause, and takes what it had asked for before."""
    wait_until(lambda: "queue paused" in worker.log, "the worker says that the queue is paused")
    began_s = monotonic()
    wait_until(lambda: monotonic() - began_s > 1.2, "the poll under way is over")


def test_jobs_of_a_paused_queue_wait_running_ones_go_on_and_all_end_after_it(
    client: Client, start: Start, tmp_path: Path
) -> None:
    worker = start("one", held_by=tmp_path, step_s=STEP_S)
    wait_for_state(client, worker, "ready")
    running = submit(client, ENDLESS)
    wait_until(lambda: client.job(running).tokens > 5, "a job runs")
    assert client.pause("m") is None
    wait_for_pause(client, worker)
    waiting = [submit(client) for _ in range(3)]
    late = client.submit(prompt="a tale", sampling=SHORT, timeout_s=0.5)
    before = client.job(running).tokens
    wait_until(lambda: client.job(running).tokens > before, "the running job goes on")
    assert client.result(late, timeout_s=PATIENCE_S).finish_reason == "deadline"
    shown = client.job(waiting[0])
    assert (shown.state, shown.attempts, shown.worker) == ("queued", 0, None)
    assert shown.note == "m is paused: its jobs wait. herd resume --model m ends that"
    (queue,) = client.status().queues
    assert (queue.is_paused, queue.paused_until_ms, queue.waiting, queue.workers) == (True, None, 3, 1)
    assert not any(has_run(client, job_id) for job_id in waiting)
    client.cancel(running)
    assert client.result(running, timeout_s=PATIENCE_S).finish_reason == "cancelled"
    assert client.resume("m")
    results = [client.result(job_id, timeout_s=PATIENCE_S) for job_id in waiting]
    assert [(one.finish_reason, one.attempts) for one in results] == [("length", 1)] * 3
    wait_until(lambda: "queue resumed" in worker.log, "the worker says so")
    assert client.job(waiting[0]).note == ""


def test_a_pause_ends_by_itself(client: Client, start: Start) -> None:
    worker = start("one")
    wait_for_state(client, worker, "ready")
    until_ms = client.pause("m", for_s=12.0)
    assert until_ms is not None
    wait_for_pause(client, worker)
    job_id = submit(client)
    result = client.result(job_id, timeout_s=PATIENCE_S)
    assert result.finish_reason == "length"
    status = client.job(job_id)
    assert status.now_ms >= until_ms
    assert status.ended_ms is not None
    assert status.ended_ms >= until_ms, "not before its end"
    assert status.ended_ms - until_ms < 1000 * SOON_S


def test_a_worker_that_starts_takes_nothing_of_a_paused_queue(client: Client, start: Start) -> None:
    client.pause("m")
    job_ids = [submit(client) for _ in range(3)]
    worker = start("one")
    wait_for_state(client, worker, "ready")
    wait_for_pause(client, worker)
    assert not any(has_run(client, job_id) for job_id in job_ids)
    assert worker.stop() == 0
    again = start("one")
    wait_for_state(client, again, "ready")
    wait_for_pause(client, again)
    assert not any(has_run(client, job_id) for job_id in job_ids)
    client.resume("m")
    assert [client.result(one, timeout_s=PATIENCE_S).attempts for one in job_ids] == [1, 1, 1]


def test_another_queue_of_the_tenant_and_the_same_model_of_another_tenant_go_on(
    client: Client, start: Start, redis_url: str
) -> None:
    worker = start("one", tenants="default,acme")
    wait_for_state(client, worker, "ready")
    client.pause("m")
    wait_for_pause(client, worker)
    waiting = submit(client)
    with Client(redis_url, tenant="acme", model="m") as other:
        assert other.result(submit(other), timeout_s=PATIENCE_S).finish_reason == "length"
        assert not other.status().queues[0].is_paused
        assert other.drain("one@test") is None
        wait_until(lambda: state_of(other, worker) == "drained", "acme sees it drained")
        assert state_of(client, worker) == "ready", "the drain of another tenant is not seen here"
    client.resume("m")
    assert client.result(waiting, timeout_s=PATIENCE_S).finish_reason == "length"


def test_a_drained_worker_ends_what_it_can_stays_up_and_takes_nothing_until_it_may(
    client: Client, start: Start, tmp_path: Path
) -> None:
    worker = start("one", grace_s=60, held_by=tmp_path, step_s=STEP_S)
    wait_for_state(client, worker, "ready")
    running = submit(client, ENDLESS)
    wait_until(lambda: client.job(running).tokens > 5, "a job runs")
    client.drain(worker.name)
    wait_for_state(client, worker, "draining")
    client.cancel(running)
    wait_for_state(client, worker, "drained")
    waiting = submit(client)
    assert client.job(waiting).note.startswith("all workers of m are drained: its jobs wait.")
    assert client.status().queues[0].drained == 1
    assert worker.is_alive
    worker.stop()
    again = start("one")
    wait_for_state(client, again, "drained")
    assert not has_run(client, waiting)
    assert client.undo_drain(worker.name)
    assert client.result(waiting, timeout_s=PATIENCE_S).finish_reason == "length"
    wait_for_state(client, again, "ready")


def test_a_drained_worker_hands_back_what_has_not_ended_in_time_and_others_go_on(
    client: Client, start: Start, tmp_path: Path
) -> None:
    first = start("one", grace_s=1, deterministic="true", dtype="float32", held_by=tmp_path, step_s=STEP_S)
    wait_for_state(client, first, "ready")
    sampling: SamplingFields = {"max_tokens": 1500, "temperature": 0}
    jobs = [submit(client, sampling) for _ in range(4)]
    wait_until(lambda: client.job(jobs[0]).tokens > 20, "the first runs")
    client.drain(first.name)
    wait_for_state(client, first, "drained")
    assert "the worker is drained" in first.log
    left = [one for one in map(client.job, jobs) if one.state == "queued"]
    assert any(one.tokens for one in left), "one of them is in the middle of its text"
    second = start("two", deterministic="true", dtype="float32")
    results = [client.result(job_id, timeout_s=90) for job_id in jobs]
    assert [(one.finish_reason, len(one.ids)) for one in results] == [("length", 1500)] * 4
    assert len({tuple(one.ids) for one in results}) == 1, "the same text, wherever it went on"
    for job_id in jobs:
        events = list(client.stream(job_id, timeout_s=PATIENCE_S))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert client._redis.hget(Ledger().job_key(job_id), "deaths") == b"0", "no death is counted"
    assert first.is_alive
    assert state_of(client, second) == "ready"


def test_a_drain_lets_waiting_jobs_of_the_worker_go_to_others_at_once(
    client: Client, start: Start, tmp_path: Path
) -> None:
    """Long before its grace period ends, as always where another worker has room."""
    first = start("one", grace_s=3600, held_by=tmp_path)
    wait_for_state(client, first, "ready")
    with held(tmp_path, num_tokens=1):
        jobs = [submit(client) for _ in range(6)]
        wait_until(lambda: all(client.job(one).state == "running" for one in jobs), "all are in its hands")
        client.drain(first.name)
        wait_for_state(client, first, "draining")
        start("two")
        wait_until(lambda: sum(client.job(one).state == "done" for one in jobs) >= 3, "the second has some")
    wait_for_state(client, first, "drained")
    assert [client.result(one, timeout_s=PATIENCE_S).finish_reason for one in jobs] == ["length"] * 6


@pytest.mark.fault
def test_pauses_and_drains_outlive_redis(start: Start) -> None:
    with DurableRedis() as server, Client(server.url, model="m") as client:
        one, two = start("one", server.url), start("two", server.url)
        for worker in (one, two):
            wait_for_state(client, worker, "ready")
        client.pause("m")
        client.drain(two.name)
        for worker in (one, two):
            wait_until(lambda worker=worker: "queue paused" in worker.log, "it is heard of")  # type: ignore[misc]
        with server.away(1.0):
            pass
        jobs = [submit(client) for _ in range(4)]
        for worker in (one, two):
            wait_for_state(client, worker, "ready" if worker is one else "drained")
        three = start("three", server.url)
        wait_for_state(client, three, "ready")
        wait_for_pause(client, three)
        assert not any(has_run(client, job_id) for job_id in jobs)
        client.resume("m")
        results = [client.result(job_id, timeout_s=PATIENCE_S) for job_id in jobs]
        assert [one.finish_reason for one in results] == ["length"] * 4
        assert {client.job(job_id).worker for job_id in jobs} <= {one.name, three.name}
        assert state_of(client, two) == "drained"
