"""Messages that end a stock Celery worker, alone and between good jobs: put aside, and on it goes."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random
from statistics import median
from time import monotonic

import pytest

from llama_herd.tasks.ledger.answers import DeadLetter
from llama_herd.tasks.ledger.dead_letters import MAX_LETTERS, DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.malformed import ODD, REFUSED, UNREADABLE, mutants
from tests.chaos.harness.patience import PATIENCE_S
from tests.local.tended_worker import TendedWorker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

#: Random messages that are pushed at once; fewer than there may be dead letters.
BATCH = 500

#: What the allocator may keep for itself; 100,000 messages that are kept need several times as much.
MAX_MORE_MIB = 192


@pytest.mark.parametrize("kinds", [UNREADABLE, REFUSED, ODD], ids=["unreadable", "refused", "odd"])
def test_alone_and_between_good_jobs_no_message_ends_or_holds_up_a_worker(
    herd: Herd, figures: list[str], kinds: dict[str, bytes]
) -> None:
    (worker,) = herd.start_workers(1, step_s=0)
    waits_s = [seconds_until_a_good_job_has_run(herd, worker, kind, raw) for kind, raw in kinds.items()]
    figures.append(
        f"malformed message: next job is done after p50 {1000 * median(waits_s):.0f} ms, "
        f"max {1000 * max(waits_s):.0f} ms"
    )
    assert len(dead(herd)) == (len(kinds) if kinds is UNREADABLE else 0)
    for raw in kinds.values():
        herd.jobs.redis.lpush(herd.queue, raw)
        herd.jobs.submit(1, {"max_tokens": 2})
    assert {result.finish_reason for result in herd.jobs.results()} == {"length"}
    if kinds is REFUSED:
        errors = [herd.jobs.client.result(job_id_of(raw), wait=True).error for raw in kinds.values()]
        assert {error and error.code for error in errors} == {"invalid_job"}
    assert worker.is_alive
    assert "canary" not in worker.log


@pytest.mark.parametrize("num_messages", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_no_random_message_ends_a_worker_vanishes_or_stays_in_its_memory(
    herd: Herd, figures: list[str], num_messages: int
) -> None:
    (worker,) = herd.start_workers(1, step_s=0)
    num_dead = 0
    herd.jobs.results(herd.jobs.submit(1, {"max_tokens": 2}))
    before = worker.rss_bytes
    for batch in batched(mutants(Random(0)), num_messages):
        herd.jobs.redis.lpush(herd.queue, *batch)
        herd.jobs.results(herd.jobs.submit(1, {"max_tokens": 2}))  # which is read after them
        num_dead += num_put_aside(herd, batch)
        herd.jobs.redis.delete(DeadLetters().key("dead"))
    assert {result.finish_reason for result in herd.jobs.results()} == {"length"}
    assert worker.is_alive
    more_mib = (worker.rss_bytes - before) >> 20
    figures.append(
        f"{num_messages} random messages: {num_dead} are put aside, all others ended as jobs; "
        f"the worker holds {more_mib} MiB more"
    )
    assert more_mib < MAX_MORE_MIB


def batched(messages: Iterator[bytes], num_messages: int) -> Iterator[list[bytes]]:
    for start in range(0, num_messages, BATCH):
        yield list(islice(messages, min(BATCH, num_messages - start)))


def seconds_until_a_good_job_has_run(herd: Herd, worker: TendedWorker, kind: str, raw: bytes) -> float:
    """Push a message that is none and a good job behind it."""
    herd.jobs.redis.lpush(herd.queue, raw)
    pushed_s = monotonic()
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 2})
    try:
        herd.jobs.client.result(job_id, timeout_s=10)
    except TimeoutError as error:
        error.add_note(f"the worker does not go on after: {kind} (exit code {worker.process.poll()})")
        raise
    return monotonic() - pushed_s


def dead(herd: Herd) -> list[DeadLetter]:
    letters = run_call(herd.jobs.redis, DeadLetters().letters(MAX_LETTERS))
    assert all(letter.reason for letter in letters)
    return letters


def num_put_aside(herd: Herd, messages: list[bytes]) -> int:
    """How many are dead letters, each once. All others have ended as jobs; raises if one has vanished."""
    put_aside = Counter(letter.raw for letter in dead(herd))
    assert put_aside <= Counter(messages)
    for raw in (Counter(messages) - put_aside).elements():
        herd.jobs.client.result(job_id_of(raw), timeout_s=PATIENCE_S)
    return put_aside.total()


def job_id_of(raw: bytes) -> str:
    """Read as a worker does it: bytes that are no UTF-8, in a name that nobody asks for, do no harm."""
    return str(json.loads(raw.decode(errors="replace"))["headers"]["id"])
