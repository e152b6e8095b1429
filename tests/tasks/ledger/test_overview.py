"""QUEUES: every queue that holds anything or is served, whatever others have written beside it."""

import pytest

from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.overview import Overview, QueueCounts
from llama_herd.tasks.ledger.redis_call import run
from llama_herd.tasks.ledger.reports import WORKER_TTL_S, Reports
from llama_herd.tasks.message import Envelope
from llama_herd.tasks.worker_status import WorkerStatus
from tests.tasks.herd import JOB, QUEUE, Herd

pytestmark = pytest.mark.redis

ELSEWHERE = "herd.other"


def submit(herd: Herd, job_id: str, queue: str = QUEUE, job: GenerationJob = JOB) -> None:
    run(herd.redis, herd.ledger.submit(job_id, job, Envelope.of(job_id, queue)))


def counts(herd: Herd, queue: str = QUEUE) -> dict[str, QueueCounts]:
    return {one.queue: one for one in run(herd.redis, Overview().queues(queue)).counts}


def report(herd: Herd, model: str, state: str = "ready") -> None:
    worker = WorkerStatus(name=f"{model}@box", state=state, model=model, device="cpu", slots=4)
    run(herd.redis, Reports().report_worker(worker))


def test_jobs_are_counted_by_queue_whether_anybody_serves_it_or_not(herd: Herd) -> None:
    for job_id in "abc":
        submit(herd, job_id)
    submit(herd, "d", ELSEWHERE)
    herd.claim("a")
    report(herd, "served")
    found = counts(herd)
    assert sorted(found) == [ELSEWHERE, "herd.served", QUEUE]
    assert found[QUEUE][1:3] == (3, 2)  # nobody has popped the message of the running job
    assert (found[QUEUE].num_running, found[QUEUE].num_taken) == (1, 1)
    assert (found[ELSEWHERE].num_jobs, found[ELSEWHERE].served_ms) == (1, 0)
    assert abs(found["herd.served"].served_ms / 1000 - herd.redis.time()[0]) < WORKER_TTL_S


def test_the_oldest_job_is_found_in_any_lane_behind_messages_that_say_nothing(herd: Herd) -> None:
    for job_id in "abcd":
        submit(herd, job_id)
    submit(herd, "low", job=JOB.model_copy(update={"priority": -1}))
    herd.redis.hset(herd.ledger.job_key("low"), "due_ms", 5)
    run(herd.redis, herd.ledger.cancel("a"))
    herd.redis.rpush(QUEUE, b"a bare message, next in the list")
    herd.redis.hset(herd.ledger.job_key("b"), "due_ms", 7)
    assert counts(herd)[QUEUE].oldest_ms == 5
    herd.claim("low")
    assert counts(herd)[QUEUE].oldest_ms == 7
    for job_id in "bcd":
        herd.claim(job_id)
    assert counts(herd)[QUEUE].oldest_ms == 0


def test_a_job_that_is_not_due_is_no_old_one(herd: Herd) -> None:
    submit(herd, "a", job=JOB.model_copy(update={"not_before": 2**50}))
    found = counts(herd)[QUEUE]
    assert (found.num_jobs, found.num_delayed, found.oldest_ms) == (1, 1, 0)


def test_a_stopping_worker_serves_nothing(herd: Herd) -> None:
    report(herd, "tales", "stopping")
    assert counts(herd)[QUEUE].served_ms == 0


def test_queues_of_others_and_spoilt_keys_are_left_out_or_empty(herd: Herd) -> None:
    submit(herd, "a")
    herd.redis.hset("herd:default:waiting", mapping={"herd.acme:m:jobs": 3, "celery:jobs": 3, "odd": "x"})
    herd.redis.zadd("herd:default:served", {"_kombu.binding.x": 1})
    herd.redis.zadd("herd:default:leases", {"nothing": 1})
    herd.redis.delete(QUEUE)
    herd.redis.set(QUEUE, "a list, once")
    found = counts(herd)
    assert list(found) == [QUEUE]
    assert (found[QUEUE].num_messages, found[QUEUE].num_jobs, found[QUEUE].oldest_ms) == (0, 1, 0)
