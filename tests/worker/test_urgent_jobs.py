"""Urgent jobs pass a backlog in the queue; what can wait gives way to all others."""

import io
import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from redis import Redis
from rich.console import Console

from llama_herd.cli.status_view import jobs_view
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.worker.settings import NUM_LOOK_AHEAD
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

SLOTS = 2
OVER = "herd:default:tokens:over"


@pytest.fixture
def client(redis_url: str, tmp_path: Path) -> Iterator[Client]:
    model = write_tiny_gguf(tmp_path / "m.gguf", eos=False, context_length=8192)
    with (
        Client(redis_url, model="m") as client,
        WorkerProcess(redis_url, model, "one", tmp_path / "log", slots=SLOTS, held_by=tmp_path),
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
        redis.publish(OVER, json.dumps({"type": "over"}))
        events = (json.loads(message["data"]) for message in heard.listen())
        begun = [
            event["job"]
            for event in takewhile(lambda event: event["type"] != "over", events)
            if event["type"] == "started" and event["job"] not in holders
        ]
    assert len(begun) == num_backlog + 2
    assert begun.index(urgent) <= SLOTS + NUM_LOOK_AHEAD, "what was in hand before it came"
    assert begun.index(patient) >= len(begun) - SLOTS - 1, "nobody else waits by then"


def test_an_urgent_job_takes_the_place_of_one_that_runs_which_then_goes_on(
    redis_url: str, tmp_path: Path
) -> None:
    """Though lower ones have all places of the worker. The text of that is whole, and as if undisturbed."""
    model = write_tiny_gguf(tmp_path / "m.gguf", eos=False, context_length=8192)
    log, settings = tmp_path / "log", {"slots": str(SLOTS), "deterministic": "true", "dtype": "float32"}
    with (
        Client(redis_url, model="m") as client,
        WorkerProcess(redis_url, model, "one", log, **settings) as worker,  # type: ignore[arg-type]
    ):
        alone = client.result(submit(client, -1, max_tokens=600), timeout_s=PATIENCE_S)
        low = [submit(client, -1, max_tokens=600) for _ in range(3 * NUM_LOOK_AHEAD)]
        wait_until(lambda: client.job(low[SLOTS - 1]).tokens > 20, "both rows are taken")
        urgent = [client.result(submit(client, 1, max_tokens=3), timeout_s=PATIENCE_S) for _ in range(3)]
        assert [one.finish_reason for one in urgent] == ["length"] * 3
        assert any(client.job(job_id).state == "queued" for job_id in low), "long before the others end"
        for job_id in low:
            events = list(client.stream(job_id, timeout_s=PATIENCE_S))
            result = client.result(job_id, timeout_s=PATIENCE_S)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [event.type for event in events].count("started") == 1
            assert result.ids == alone.ids
            assert "".join(event.text for event in events if event.type == "token") == alone.text
            assert result.attempts == 1
    assert "job was lost" not in worker.log


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


def submit(client: Client, priority: int, max_tokens: int = 100) -> str:
    """So many tokens that others are delivered meanwhile: only among these a job that can wait comes last."""
    sampling: SamplingFields = {"max_tokens": max_tokens, "temperature": 0}
    return client.submit(prompt="a tale", sampling=sampling, priority=priority)
