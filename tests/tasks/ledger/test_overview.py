"""QUEUES: every queue that holds anything or is served, whatever others have written beside it."""

from dataclasses import replace

import pytest
from redis import Redis

from llama_herd.tasks.events import End
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.overview import Lane, Overview, QueueCounts
from llama_herd.tasks.ledger.redis_call import run
from llama_herd.tasks.ledger.reports import WORKER_TTL_S, Reports
from llama_herd.tasks.message import Envelope
from llama_herd.tasks.worker_status import WorkerStatus
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, age_messages, sweep

pytestmark = pytest.mark.redis

ELSEWHERE = "herd.other"


def submit(herd: Herd, job_id: str, queue: str = QUEUE, job: GenerationJob = JOB) -> None:
    run(herd.redis, herd.ledger.submit(job_id, job, Envelope.of(job_id, queue)))


def counts(herd: Herd, queue: str = QUEUE) -> dict[str, QueueCounts]:
    return {one.queue: one for one in run(herd.redis, Overview().counts(queue)).queues}


def lanes(herd: Herd, queue: str = QUEUE) -> dict[str, Lane]:
    return {lane.name: lane for lane in counts(herd)[queue].lanes}


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
    # Nobody has popped the message of the running job.
    assert (found[QUEUE].num_messages, found[QUEUE].num_jobs) == (3, 2)
    assert (found[QUEUE].num_running, found[QUEUE].num_taken) == (1, 1)
    assert (found[ELSEWHERE].num_jobs, found[ELSEWHERE].served_ms) == (1, 0)
    assert abs(found["herd.served"].served_ms / 1000 - herd.redis.time()[0]) < WORKER_TTL_S


def test_a_job_waits_in_its_lane_until_its_message_is_taken(herd: Herd) -> None:
    for job_id, priority in (("a", 0), ("b", 5), ("c", -5), ("d", -5)):
        submit(herd, job_id, job=JOB.model_copy(update={"priority": priority}))
    waiting = {name: lane.num_messages for name, lane in lanes(herd).items()}
    assert waiting == {"normal": 1, "urgent": 1, "low": 2}
    assert counts(herd)[QUEUE].num_tokens == 4 * JOB.estimated_tokens
    herd.redis.rpop(QUEUE)
    herd.claim("a")
    assert lanes(herd)["normal"].num_messages == 0


def test_a_bare_message_counts_in_its_lane_and_has_no_age(herd: Herd) -> None:
    for lane in ("", "\x06\x163"):  # the second is one of Celery's own
        herd.redis.lpush(QUEUE + lane, "{}")
    assert lanes(herd)["normal"] == Lane("normal", 2, 0)


def test_of_many_queues_the_served_and_the_fullest_are_told(herd: Herd) -> None:
    for number in range(9):
        submit(herd, f"{number}", f"herd.m{number}")
    submit(herd, "more", "herd.m8")
    report(herd, "served")
    found = run(herd.redis, Overview().counts(QUEUE, max_queues=4, max_looks=0))
    assert [one.queue for one in found.queues] == [QUEUE, "herd.served", "herd.m8", "herd.m0"]


def test_what_is_dead_is_counted(herd: Herd, redis: Redis) -> None:
    run(redis, DeadLetters().bury(b"x", queue=QUEUE, reason="not JSON", worker="w"))
    redis.zadd("herd:default:quarantine", {"a": 1, "b": 1})
    found = run(redis, Overview().counts(QUEUE))
    assert (found.num_dead_letters, found.num_poisoned) == (1, 2)


def test_the_oldest_job_is_found_in_any_lane_behind_messages_that_say_nothing(herd: Herd) -> None:
    for job_id in "abcd":
        submit(herd, job_id)
    submit(herd, "low", job=JOB.model_copy(update={"priority": -1}))
    herd.redis.hset(herd.ledger.job_key("low"), "due_ms", 5)
    run(herd.redis, herd.ledger.cancel("a"))
    herd.redis.rpush(QUEUE, b"a bare message, next in the list")
    herd.redis.hset(herd.ledger.job_key("b"), "due_ms", 7)
    assert counts(herd)[QUEUE].oldest_ms == 5
    assert [lane.oldest_ms for lane in lanes(herd).values()] == [7, 0, 5]
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
    foreign = {"herd.acme:m:jobs": 3, "celery:jobs": 3, "odd": "x", ":jobs": 1}
    herd.redis.hset("herd:default:waiting", mapping=foreign)
    herd.redis.zadd("herd:default:served", {"_kombu.binding.x": 1})
    herd.redis.zadd("herd:default:leases", {"nothing": 1})
    herd.redis.delete(QUEUE)
    herd.redis.set(QUEUE, "a list, once")
    herd.redis.hset("herd:default:waiting", f"{QUEUE}:delayed", "nan")
    found = counts(herd)
    assert list(found) == [QUEUE]
    assert (found[QUEUE].num_messages, found[QUEUE].num_jobs, found[QUEUE].oldest_ms) == (0, 1, 0)
    assert found[QUEUE].num_delayed == 0


# What becomes of the jobs in a queue that nobody serves.

PATIENCE_S = 600


@pytest.fixture
def impatient(herd: Herd) -> Herd:
    """One whose workers have been up for long, and end jobs that nobody serves."""
    herd.redis.hset(SWEEP, "awake", 1)
    return replace(herd, ledger=replace(herd.ledger, unserved_timeout_s=PATIENCE_S))


def grow_old(herd: Herd, job_id: str, seconds: float = PATIENCE_S + 1) -> None:
    """Let a job have been due so much earlier."""
    herd.redis.hincrby(herd.ledger.job_key(job_id), "due_ms", -round(1000 * seconds))
    herd.pass_time(job_id, round(1000 * seconds))
    age_messages(herd, round(1000 * seconds))


def last_end(herd: Herd, job_id: str) -> End | None:
    event = herd.events(job_id)[-1] if herd.events(job_id) else None
    return event if isinstance(event, End) else None


def test_a_job_that_nobody_serves_ends_after_a_while(impatient: Herd) -> None:
    for job_id in ("old", "young", "served"):
        submit(impatient, job_id, "herd.m" if job_id == "served" else QUEUE)
    grow_old(impatient, "old")
    grow_old(impatient, "served")
    report(impatient, "m", "loading")
    sweep(impatient)
    end = last_end(impatient, "old")
    assert end is not None
    assert end.error is not None
    assert (end.error.code, end.error.retriable) == ("unserved", True)
    assert impatient.field("old", "state") == "failed"
    assert {name: last_end(impatient, name) for name in ("young", "served")} == {
        "young": None,
        "served": None,
    }
    assert run(impatient.redis, impatient.ledger.num_pending()) == 2


def test_a_job_whose_last_worker_is_gone_ends_too_but_not_at_once(impatient: Herd) -> None:
    report(impatient, "tales")
    submit(impatient, "a")
    grow_old(impatient, "a")
    impatient.claim("a")
    impatient.redis.delete(QUEUE)
    now_ms = 1000 * impatient.redis.time()[0]
    for silent_s, has_ended in ((PATIENCE_S - 5, False), (PATIENCE_S + 5, True)):
        impatient.redis.zadd("herd:default:served", {QUEUE: now_ms - 1000 * silent_s})
        impatient.fall_silent("a")
        sweep(impatient)
        assert (last_end(impatient, "a") is not None) is has_ended


def test_time_without_any_worker_is_not_counted(impatient: Herd) -> None:
    """All workers were away for a night: those of one model are up a little before those of the other."""
    submit(impatient, "a")
    grow_old(impatient, "a", 36_000)
    now_ms = 1000 * impatient.redis.time()[0]
    impatient.redis.hset(SWEEP, mapping={"last": now_ms - 36_000_000, "awake": 1})
    run(impatient.redis, impatient.ledger.sweep())
    sweep(impatient)
    assert last_end(impatient, "a") is None
    impatient.redis.hset(SWEEP, "awake", now_ms - 1000 * (PATIENCE_S + 5))
    sweep(impatient)
    assert last_end(impatient, "a") is not None


def test_by_default_it_waits_for_ever(herd: Herd) -> None:
    herd.redis.hset(SWEEP, "awake", 1)
    submit(herd, "a")
    grow_old(herd, "a", 10**6)
    sweep(herd)
    assert last_end(herd, "a") is None
