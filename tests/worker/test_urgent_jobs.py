"""Urgent jobs pass a backlog in the queue; what can wait gives way to all others."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from rich.console import Console

from benchmarks.urgent_jobs import counted
from llama_herd.cli.status_view import jobs_view
from llama_herd.local.redis_server import free_port
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.worker.settings import NUM_LOOK_AHEAD, WorkerSettings
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

SLOTS = 2
#: How long each step lasts at least: a long job is to be there as long as a test needs it.
STEP_S = 0.005
OVER = "herd:default:tokens:over"
EXACT: dict[str, Any] = {"deterministic": "true", "dtype": "float32"}
#: What a job that can wait reserves in the cache, in tokens.
LOW_TOKENS = 32 * PAGE_TOKENS


@pytest.fixture
def client(redis_url: str, tmp_path: Path) -> Iterator[Client]:
    model = write_tiny_gguf(tmp_path / "m.gguf", eos=False, context_length=8192)
    with (
        Client(redis_url, model="m") as client,
        WorkerProcess(
            redis_url, model, "one", tmp_path / "log", slots=SLOTS, held_by=tmp_path, step_s=STEP_S
        ),
    ):
        yield client


@pytest.mark.parametrize("num_backlog", [24, pytest.param(40, marks=pytest.mark.slow)])
def test_an_urgent_job_passes_the_backlog_and_one_that_can_wait_comes_after_it(
    client: Client, redis: Redis, num_backlog: int, tmp_path: Path
) -> None:
    with redis.pubsub(ignore_subscribe_messages=True) as heard:  # type: ignore[no-untyped-call]
        heard.psubscribe("herd:default:tokens:*")
        # No slot is free before all is queued, however slow the machine.
        with held(tmp_path, num_tokens=1):
            holders = [submit(client, 0, max_tokens=4000) for _ in range(SLOTS)]
            for holder in holders:
                wait_until(lambda one=holder: client.job(one).state == "running", "it runs")  # type: ignore[misc]
            backlog = [submit(client, 0) for _ in range(num_backlog // 2)]
            patient = submit(client, -1)
            backlog += [submit(client, 0) for _ in range(num_backlog // 2)]
            urgent = submit(client, 1)
            for holder in holders:
                client.cancel(holder)
        for job_id in (patient, urgent, *backlog):
            assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "length"
        begun = [
            event["job"]
            for event in told(redis, heard)
            if event["type"] == "started" and event["job"] not in holders
        ]
    assert len(begun) == num_backlog + 2
    assert begun.index(urgent) <= SLOTS + NUM_LOOK_AHEAD, "what was in hand before it came"
    assert begun.index(patient) >= len(begun) - SLOTS - 1, "nobody else waits by then"


@pytest.mark.parametrize(
    "limits",
    [{"slots": 4}, {"slots": 16, "kv_cache_tokens": 4 * LOW_TOKENS}],
    ids=["rows are taken", "pages are taken"],
)
def test_urgent_jobs_that_fit_together_begin_at_the_first_step_after_their_claim(
    redis_url: str, redis: Redis, tmp_path: Path, limits: dict[str, Any]
) -> None:
    """Others have the token of the step before, and no lower prompt is computed before theirs."""
    model = write_tiny_gguf(tmp_path / "m.gguf", eos=False, context_length=8192)
    limits = {**EXACT, **limits, "held_by": tmp_path, "step_s": 0.01}
    with (
        Client(redis_url, model="m") as client,
        WorkerProcess(redis_url, model, "one", tmp_path / "log", **limits),
        redis.pubsub(ignore_subscribe_messages=True) as heard,  # type: ignore[no-untyped-call]
    ):
        heard.psubscribe("herd:default:tokens:*")
        low = [submit(client, -1, max_tokens=LOW_TOKENS - PAGE_TOKENS, flush_ms=0) for _ in range(5)]
        wait_until(lambda: sum(client.job(one).tokens > 5 for one in low) == 4, "all room is taken")
        for num_urgent in (1, 3, 4):
            wait_for_waiting(client, 1)
            with held(tmp_path):
                urgent = [submit(client, 1, max_tokens=3, flush_ms=0) for _ in range(num_urgent)]
                wait_for_waiting(client, 1 + num_urgent)
                list(told(redis, heard))  # what came before
            for job_id in urgent:
                assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "length"
            said = [(event["type"], event["job"]) for event in told(redis, heard)]
            begun = max(said.index(("started", job_id)) for job_id in urgent)
            meanwhile = Counter(said[:begun])
            assert set(meanwhile.values()) <= {1}, meanwhile
            computed = max(said.index(("token", job_id)) for job_id in urgent)
            assert [kind for kind, _ in said[:computed]].count("started") == num_urgent


def test_an_urgent_job_that_must_run_alone_takes_no_place(
    client: Client, redis: Redis, tmp_path: Path
) -> None:
    low = [submit(client, -1, max_tokens=4000) for _ in range(SLOTS)]
    wait_until(lambda: all(client.job(one).tokens > 5 for one in low), "both rows are taken")
    (tmp_path / "consumer").touch()
    suspect = submit(client, 1)
    redis.hset(Ledger().job_key(suspect), "deaths", WorkerSettings().max_deaths - 1)
    (tmp_path / "consumer").unlink()
    wait_until(lambda: client.job(suspect).worker, "a worker has it")
    begun = max(client.job(one).tokens for one in low)
    wait_until(lambda: all(client.job(one).tokens > begun + 50 for one in low), "they go on")
    assert client.job(suspect).attempts == 0, "it has not begun"
    for one in low:
        client.cancel(one)
    assert client.result(suspect, timeout_s=PATIENCE_S).finish_reason == "length"


@pytest.mark.parametrize(
    "num_rows", [30, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_streams_of_jobs_that_lose_their_places_are_dense_and_whole(
    redis_url: str, tmp_path: Path, num_rows: int
) -> None:
    """Though lower ones have all places of the worker. All have the ids of an undisturbed run."""
    model = write_tiny_gguf(tmp_path / "m.gguf", eos=False, context_length=8192)
    log, port = tmp_path / "log", free_port()
    with (
        Client(redis_url, model="m") as client,
        WorkerProcess(redis_url, model, "one", log, **EXACT, slots=4, metrics_port=port) as worker,
        ThreadPoolExecutor(4 * NUM_LOOK_AHEAD) as followers,
    ):
        undisturbed = [client.result(drawn(client, seed), timeout_s=PATIENCE_S) for seed in range(8)]
        low, live, are_passed = list[str](), list[Future[list[Event]]](), False
        while counted(port)["preemptions"] < num_rows or not are_passed:
            while client.status().pending < 2 * NUM_LOOK_AHEAD:
                low.append(drawn(client, seed=len(low) % 8))
                live.append(followers.submit(followed, client, low[-1]))
            for urgent in [submit(client, 1, max_tokens=3) for _ in range(4)]:
                assert client.result(urgent, timeout_s=PATIENCE_S).finish_reason == "length"
            are_passed |= any(client.job(job_id).state == "queued" for job_id in reversed(low))
        num_again = 0
        for number, (job_id, heard) in enumerate(zip(low, live, strict=True)):
            alone, result = undisturbed[number % 8], client.result(job_id, timeout_s=PATIENCE_S)
            events = followed(client, job_id)
            assert heard.result() == events
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            num_again += result.attempts - 1
            assert [event.type for event in events].count("started") == result.attempts
            assert (result.ids, result.text, result.usage) == (alone.ids, alone.text, alone.usage)
            assert "".join(event.text for event in events if event.type == "token") == alone.text
    # One that is released to more urgent ones may begin in that moment, and begins again then.
    lines = [json.loads(line) for line in worker.log.splitlines() if line.startswith("{")]
    num_released = sum(line["num_jobs"] for line in lines if line["event"].startswith("jobs released"))
    assert num_again <= num_released
    assert sum(line["event"] == "job left this worker" for line in lines) <= num_released


def test_who_has_lost_its_place_is_told_until_it_goes_on(client: Client) -> None:
    low = [submit(client, -1, max_tokens=4000) for _ in range(SLOTS)]
    wait_until(lambda: all(client.job(one).tokens > 5 for one in low), "both rows are taken")
    assert not any(one.is_preempted for one in client.jobs())
    urgent = submit(client, 1, max_tokens=4000)
    wait_until(lambda: any(one.is_preempted for one in client.jobs()), "one of them is told to have none")
    (loser,) = (one for one in client.jobs() if one.is_preempted)
    assert (loser.job_id in low, loser.state, loser.preemptions) == (True, "running", 1)
    shown = io.StringIO()
    Console(file=shown, width=120).print(jobs_view(client.jobs()))
    assert shown.getvalue().count("preempted") == 1
    client.cancel(urgent)
    wait_until(lambda: client.job(loser.job_id).tokens > loser.tokens, "it goes on")
    after = client.job(loser.job_id)
    assert (after.is_preempted, after.preemptions) == (False, 1)


def submit(client: Client, priority: int, max_tokens: int = 20, flush_ms: int | None = None) -> str:
    """So many tokens that others are delivered meanwhile: only among these a job that can wait comes last."""
    sampling: SamplingFields = {"max_tokens": max_tokens, "temperature": 0}
    return client.submit(prompt="a tale", sampling=sampling, priority=priority, flush_ms=flush_ms)


def drawn(client: Client, seed: int) -> str:
    """One of some jobs that can wait, each with another prompt, length and text."""
    sampling: SamplingFields = {"max_tokens": 80 + 10 * seed, "temperature": 0.9, "seed": seed}
    return client.submit(prompt="a tale " * (1 + 12 * seed), sampling=sampling, priority=-1)


def followed(client: Client, job_id: str) -> list[Event]:
    """All events of a job, once it has ended."""
    return list(client.stream(job_id, timeout_s=PATIENCE_S))


def wait_for_waiting(client: Client, num: int) -> None:
    wait_until(lambda: client.workers()[0].waiting == num, f"{num} wait in the worker")


def told(redis: Redis, heard: PubSub) -> Iterator[dict[str, Any]]:
    """All events that were published until now, in order."""
    redis.publish(OVER, json.dumps({"type": "over"}))
    events = (json.loads(message["data"]) for message in heard.listen())  # type: ignore[no-untyped-call]
    return takewhile(lambda event: event["type"] != "over", events)
