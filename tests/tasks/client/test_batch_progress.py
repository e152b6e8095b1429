"""What a caller is told of a batch while it runs, and of its end."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks import AsyncClient, BatchItem, BatchRow, Client, Result
from llama_herd.tasks.client.batch import batch_progress, client_batch
from llama_herd.tasks.client.batch.batch_progress import SPAN_S, BatchProgress, DoneRows
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.events import Failure, Usage
from tests.tasks.client.test_batch import prompts

pytestmark = pytest.mark.redis

near = partial(pytest.approx, rel=0.01)


def told(statuses: Sequence[BatchStatus]) -> list[int]:
    return [status.num_done + status.num_failed for status in statuses]


def test_a_caller_is_told_how_a_batch_stands_and_once_of_its_end(client: Client, redis_url: str) -> None:
    failure = Failure(code="numeric_error", message="no numbers")
    shown: list[BatchStatus] = []
    with StandIn(redis_url, verdict=lambda job_id, job: failure if job.prompt == "tale 7" else None):
        items = list(client.batch(prompts(300), window=8, on_progress=shown.append))
    assert [status.state for status in shown] == ["running"] * (len(shown) - 1) + ["done"]
    assert told(shown) == sorted(told(shown))
    last = shown[-1]
    assert (last.num_rows, last.num_done, last.num_failed, last.num_under_way) == (300, 299, 1, 0)
    usages = [item.result.usage for item in items if item.result and item.result.usage]
    assert last.completion_tokens == sum(usage.completion_tokens for usage in usages) > 0
    assert last.prompt_tokens == sum(usage.prompt_tokens for usage in usages) > 0


def test_the_speed_is_that_of_the_last_seconds_and_at_the_end_of_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = DoneRows()
    for line in range(5):
        done.add(line, has_failed=line < 2)
    progress = BatchProgress("run", "rows", 100, done)
    begun_s = now_s = monotonic()
    monkeypatch.setattr(batch_progress, "monotonic", lambda: now_s)
    step_s = SPAN_S / 3.5  # in between four steps and three
    nums = [3, 0, 7, 1, 0, 4, 2, 9, 0, 1]  # rows of each step, with twice as many tokens each
    for step, num in enumerate(nums, start=1):
        now_s += step_s
        usage = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3)
        progress.count([BatchItem(BatchRow(0), "job", "m", Result.of("", usage=usage))] * num)
        running = progress.status("running", 0)
        last, last_s = sum(nums[max(0, step - 4) : step]), step_s * min(step, 4)
        assert (running.rows_per_s, running.tokens_per_s) == near((last / last_s, 2 * last / last_s))
    ended = progress.status("done", 0)
    assert (ended.rows_per_s, ended.tokens_per_s) == near((27 / (now_s - begun_s), 54 / (now_s - begun_s)))
    assert ended.elapsed_s == near(now_s - begun_s)
    assert (ended.num_before, ended.num_failed) == (5, 2)


def test_a_caller_is_told_twice_a_second_at_most(
    client: Client, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[BatchStatus] = []
    monkeypatch.setattr(client_batch, "TELL_S", 3600.0)
    with StandIn(redis_url):
        assert len(list(client.batch(iter(prompts(50)), window=2, on_progress=shown.append))) == 50
    assert [(status.state, status.num_rows) for status in shown] == [("running", 0), ("done", 0)]
    shown.clear()
    assert list(client.batch(iter([]), on_progress=shown.append, total=9)) == []
    assert [(status.state, status.num_rows) for status in shown] == [("done", 9)]


def test_what_a_caller_raises_when_it_is_told_costs_no_item(
    client: Client, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_batch, "TELL_S", 0.0)

    def fail(status: BatchStatus) -> None:
        raise ZeroDivisionError

    batch = client.batch(prompts(30), on_progress=fail)
    items: list[BatchItem] = []
    with StandIn(redis_url):
        while not batch.window.is_over:
            with suppress(ZeroDivisionError):
                items += batch
    assert sorted(item.index for item in items) == list(range(30))


def test_a_batch_that_was_cancelled_tells_so(client: Client) -> None:
    shown: list[BatchStatus] = []
    batch = client.batch(prompts(5), on_progress=shown.append)
    batch.poll()
    batch.cancel()
    assert len(list(batch)) == 5
    assert (shown[-1].state, shown[-1].num_failed) == ("cancelled", 5)


def test_the_asyncio_client_tells_how_a_batch_stands_too(redis_url: str) -> None:
    shown: list[BatchStatus] = []

    async def collect() -> None:
        async with AsyncClient(redis_url) as client:
            batch = client.batch(prompts(100), on_progress=shown.append)
            assert len([item async for item in batch]) == 100

    with StandIn(redis_url):
        asyncio.run(collect())
    assert (shown[-1].state, shown[-1].num_done, shown[-1].num_rows) == ("done", 100, 100)
