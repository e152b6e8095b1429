"""Tenants that come no more: whatever happened to their jobs, in the end Redis holds nothing of them."""

from collections.abc import Callable

import pytest

from llama_herd.tasks.ledger.batch_records import BatchRecords, BatchRequest
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Beat, Reports, beat
from llama_herd.tasks.ledger.stored_files import NewFile, Quota, StoredFiles
from llama_herd.tasks.ledger.sweep import due_for_sweep
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.tasks.herd import JOB, QUEUE, Herd, sweep
from tests.tasks.ledger.test_kept import ENDS, KEPT, end_here, let_hours_pass

pytestmark = pytest.mark.redis

WORKER = WorkerStatus(name="w", state="ready", model="tales", device="cpu", slots=4)
NO_LIMIT = Quota(0, 0)


def run_jobs(herd: Herd) -> None:
    """One for each way to end, with a worker that sweeps, reports, and tells Celery."""
    for kept_limit in (None, 1 << 30):  # which it learns later
        run_call(herd.redis, beat([Beat(Reports(), WORKER, kept_limit)]))
    for number, ends in enumerate(ENDS):
        herd.submit(f"job-{number}")
        ends(herd, f"job-{number}")
        run_call(herd.redis, herd.ledger.settle(f"job-{number}"))
    herd.redis.delete(QUEUE)  # a worker has taken the messages
    sweep(herd)
    herd.redis.hset("herd:default:sweep", "last", 1)
    run_call(herd.redis, due_for_sweep([herd.ledger]))


def run_a_batch(herd: Herd) -> None:
    """It ends, and its file is deleted. A command has reported one of its own."""
    status = BatchStatus(run_id="run", state="running", input_name="in.jsonl")
    run_call(herd.redis, Reports().report_batch(status))
    files, batches = StoredFiles("default", "disk"), BatchRecords("default", "disk")
    run_call(
        herd.redis, files.add(NewFile("file-1", "in.jsonl", "batch", 9, "key", None), NO_LIMIT, NO_LIMIT)
    )
    asked = BatchRequest("file-1", "/v1/completions", "24h", {}, None, "key")
    run_call(herd.redis, batches.create("batch_1", asked, 86_400_000))
    claimed = run_call(herd.redis, batches.claim("batch_1", 60_000))
    assert claimed is not None
    run_call(herd.redis, batches.start(claimed.record, 60_000, 5, "m", NO_LIMIT))
    assert run_call(herd.redis, batches.end(claimed.record, "completed"))
    for _ in range(2):  # by a user, and by a feeder that has deleted its bytes
        run_call(herd.redis, files.drop("file-1"))


def bury(herd: Herd) -> None:
    run_call(herd.redis, DeadLetters().bury(b"x", queue=QUEUE, reason="unreadable", worker="w"))


#: Ids of batches stay: who makes the next one looks which of them are gone.
STAYS = {b"herd:default:stored_batches"}


@pytest.mark.parametrize("act", [run_jobs, run_a_batch, bury])
def test_every_key_of_a_tenant_goes_by_itself(herd: Herd, act: Callable[[Herd], None]) -> None:
    act(herd)
    keys = set(herd.redis.scan_iter("herd:default:*"))
    assert keys
    assert {key for key in keys if herd.redis.ttl(key) == -1} <= STAYS


def test_counts_of_what_is_kept_go_after_the_last_that_counts(herd: Herd) -> None:
    herd.submit("a")
    end_here(herd, "a")
    left_s = herd.redis.ttl(KEPT)
    assert herd.redis.ttl(herd.ledger.job_key("a")) <= left_s <= 2 * 3600 + 1
    herd.submit("b", JOB.model_copy(update={"keep_s": 86_400}))
    end_here(herd, "b")
    left_s = herd.redis.ttl(KEPT)
    let_hours_pass(herd, 1)
    herd.submit("c")
    end_here(herd, "c")
    assert herd.redis.ttl(KEPT) >= left_s - 60


def test_a_limit_of_what_is_kept_stays_while_workers_report(herd: Herd) -> None:
    reports = beat([Beat(Reports(), WORKER, kept_limit=1 << 30)])
    run_call(herd.redis, reports)
    herd.redis.expire(KEPT, 5)
    herd.redis.hincrby("herd:default:worker:w", "beat_ms", -3_600_000)
    run_call(herd.redis, reports)
    assert herd.redis.ttl(KEPT) > 3600
    assert herd.redis.hget(KEPT, "limit") == b"1073741824"
