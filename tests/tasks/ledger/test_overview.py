"""QUEUES: every queue that holds anything or is served, whatever others have written beside it."""

from dataclasses import replace

import pytest
from redis import Redis

from llama_herd.tasks.ledger import reports
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.overview import LaneCounts, Overview, QueueCounts
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import WORKER_TTL_S, Reports
from llama_herd.tasks.ledger.sweep import sweep_tenant
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.sampling import DEFAULT_MAX_TOKENS, SamplingParams
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import Settings
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, age_messages, sweep

pytestmark = pytest.mark.redis

ELSEWHERE = "herd.other"


def submit(herd: Herd, job_id: str, queue: str = QUEUE, job: GenerationJob = JOB) -> None:
    run_call(herd.redis, herd.ledger.submit(job_id, job, Envelope.for_job(job_id, queue)))


def counts(herd: Herd, queue: str = QUEUE) -> dict[str, QueueCounts]:
    return {one.queue: one for one in run_call(herd.redis, Overview().counts(queue)).queues}


def lanes(herd: Herd, queue: str = QUEUE) -> dict[str, LaneCounts]:
    return {lane.name: lane for lane in counts(herd)[queue].lanes}


def report(herd: Herd, model: str, state: str = "ready") -> None:
    worker = WorkerStatus(name=f"{model}@box", state=state, model=model, device="cpu", slots=4)
    run_call(herd.redis, Reports().report_worker(worker))


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


@pytest.mark.long
def test_a_bare_message_counts_in_its_lane_and_has_no_age(herd: Herd) -> None:
    for lane in ("", "\x06\x163"):  # the second is one of Celery's own
        herd.redis.lpush(QUEUE + lane, "{}")
    assert lanes(herd)["normal"] == LaneCounts("normal", 2, 0)


def test_of_many_queues_the_served_and_the_fullest_are_told(herd: Herd) -> None:
    for number in range(9):
        submit(herd, f"{number}", f"herd.m{number}")
    submit(herd, "more", "herd.m8")
    report(herd, "served")
    found = run_call(herd.redis, Overview().counts(QUEUE, max_queues=4, max_looks=0))
    assert [one.queue for one in found.queues] == [QUEUE, "herd.served", "herd.m8", "herd.m0"]


def test_what_is_dead_is_counted(herd: Herd, redis: Redis) -> None:
    run_call(redis, DeadLetters().bury(b"x", queue=QUEUE, reason="not JSON", worker="w"))
    redis.zadd("herd:default:quarantine", {"a": 1, "b": 1})
    found = run_call(redis, Overview().counts(QUEUE))
    assert (found.num_dead_letters, found.num_poisoned) == (1, 2)


def test_the_oldest_job_is_found_in_any_lane_behind_messages_that_say_nothing(herd: Herd) -> None:
    for job_id in "abcd":
        submit(herd, job_id)
    submit(herd, "low", job=JOB.model_copy(update={"priority": -1}))
    herd.redis.hset(herd.ledger.job_key("low"), "due_ms", 5)
    run_call(herd.redis, herd.ledger.cancel("a"))
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


# What is due: what a worker that came now could run.

TOMORROW_MS = 2**50


def delayed(*, max_tokens: int = 100) -> GenerationJob:
    return JOB.model_copy(
        update={"not_before": TOMORROW_MS, "sampling": SamplingParams(max_tokens=max_tokens)}
    )


def due(herd: Herd, queue: str = QUEUE) -> tuple[int, int]:
    """Jobs and tokens."""
    found = counts(herd, queue)[queue]
    return found.num_due, found.num_due_tokens


def test_the_tokens_of_delayed_jobs_are_not_due(herd: Herd) -> None:
    for number in range(3):
        submit(herd, f"later-{number}", job=delayed(max_tokens=4000))
    assert due(herd) == (0, 0)
    submit(herd, "a")
    submit(herd, "b", ELSEWHERE)
    assert due(herd) == (1, JOB.estimated_tokens)
    assert due(herd, ELSEWHERE) == (1, JOB.estimated_tokens)


@pytest.mark.parametrize("way", ["cancel", "claim", "sweep"])
def test_a_delayed_job_leaves_no_tokens_behind_however_it_leaves(herd: Herd, way: str) -> None:
    submit(herd, "a")
    submit(herd, "later", job=delayed())
    submit(herd, "latest", job=delayed(max_tokens=7))
    if way == "cancel":
        run_call(herd.redis, herd.ledger.cancel("later"))
        herd.redis.lpop(QUEUE)  # the message by which a worker tells Celery
    else:
        herd.redis.hset(herd.ledger.job_key("later"), "due_ms", 1)
        herd.redis.zadd("herd:default:delayed", {"later": 1})
        if way == "claim":
            herd.claim("later")
        else:
            sweep(herd)
    tokens = JOB.estimated_tokens + (delayed().estimated_tokens if way == "sweep" else 0)
    assert due(herd) == (1 + (way == "sweep"), tokens)
    assert counts(herd)[QUEUE].num_delayed_tokens == delayed(max_tokens=7).estimated_tokens


def test_without_a_worker_a_delayed_job_is_due_when_its_time_comes(herd: Herd) -> None:
    """Only workers sweep. Where none is up, this alone says that one is wanted."""
    submit(herd, "later", job=delayed())
    herd.redis.zadd("herd:default:delayed", {"later": 1})
    assert due(herd) == (1, delayed().estimated_tokens)
    sweep(herd)
    assert due(herd) == (1, delayed().estimated_tokens)


def test_without_another_worker_the_jobs_of_one_that_died_are_due(herd: Herd) -> None:
    submit(herd, "a")
    herd.redis.rpop(QUEUE)
    herd.claim("a")
    assert due(herd) == (0, 0)
    herd.fall_silent("a")
    assert due(herd) == (1, JOB.estimated_tokens)


def test_a_bare_message_is_due_with_as_many_tokens_as_by_default(herd: Herd) -> None:
    herd.redis.lpush(QUEUE, "{}", "{}")
    assert due(herd) == (2, 2 * DEFAULT_MAX_TOKENS)
    submit(herd, "a")
    assert due(herd) == (3, 2 * DEFAULT_MAX_TOKENS + JOB.estimated_tokens)


def test_jobs_that_are_counted_wrongly_are_due_all_the_same(herd: Herd) -> None:
    """Somebody else has written there."""
    submit(herd, "a")
    herd.redis.hset("herd:default:waiting", f"{QUEUE}:delayedtokens", 10**6)
    assert due(herd) == (1, 1)
    herd.claim("a")
    assert herd.redis.hexists("herd:default:waiting", f"{QUEUE}:delayedtokens") == 0


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
#: May have no worker.
STANDING = "asleep"


@pytest.fixture
def impatient(herd: Herd) -> Herd:
    """One whose workers have been up for long, and end jobs for names that nobody ever served."""
    herd.redis.hset(SWEEP, "awake", 1)
    return replace(
        herd, ledger=replace(herd.ledger, unserved_timeout_s=PATIENCE_S, standing_models=(STANDING,))
    )


def grow_old(herd: Herd, job_id: str, seconds: float = PATIENCE_S + 1) -> None:
    """Let a job have been due so much earlier."""
    herd.redis.hincrby(herd.ledger.job_key(job_id), "due_ms", -round(1000 * seconds))
    herd.pass_time(job_id, round(1000 * seconds))
    age_messages(herd, round(1000 * seconds))


def last_end(herd: Herd, job_id: str) -> End | None:
    event = herd.events(job_id)[-1] if herd.events(job_id) else None
    return event if isinstance(event, End) else None


def test_a_job_for_a_name_that_nobody_ever_served_ends_after_a_while(impatient: Herd) -> None:
    queues = {"old": QUEUE, "young": QUEUE, "served": "herd.m", "standing": f"herd.{STANDING}"}
    for job_id, queue in queues.items():
        submit(impatient, job_id, queue)
        if job_id != "young":
            grow_old(impatient, job_id)
    report(impatient, "m", "loading")
    sweep(impatient)
    end = last_end(impatient, "old")
    assert end is not None
    assert end.error is not None
    assert (end.error.code, end.error.retriable) == ("unserved", False)
    assert "HERD_MODELS" in end.error.message
    assert impatient.field("old", "state") == "failed"
    assert [name for name in queues if last_end(impatient, name)] == ["old"]
    assert run_call(impatient.redis, impatient.ledger.num_pending()) == 3


def test_a_name_that_was_served_once_is_right_for_ever(impatient: Herd) -> None:
    report(impatient, "tales")
    impatient.redis.zadd("herd:default:served", {QUEUE: 1}, xx=True)  # decades ago
    report(impatient, "other")
    for job_id in ("waits", "ran"):
        submit(impatient, job_id)
        grow_old(impatient, job_id, 10**7)
    impatient.claim("ran")
    impatient.redis.delete(QUEUE)
    impatient.fall_silent("ran")
    sweep(impatient)
    assert last_end(impatient, "waits") is last_end(impatient, "ran") is None
    assert list(counts(impatient, ELSEWHERE)) == [ELSEWHERE, QUEUE]


def test_of_many_names_the_last_served_are_remembered(herd: Herd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_SERVED", 2)
    for number, model in enumerate("abcb"):
        report(herd, model)
        herd.redis.zadd("herd:default:served", {f"herd.{model}": number + 1})
    assert herd.redis.zrange("herd:default:served", 0, -1) == [b"herd.c", b"herd.b"]


def test_time_without_any_worker_is_not_counted(impatient: Herd) -> None:
    """All workers were away for a night: those of one model are up a little before those of the other."""
    submit(impatient, "a")
    grow_old(impatient, "a", 36_000)
    now_ms = 1000 * impatient.redis.time()[0]
    impatient.redis.hset(SWEEP, mapping={"last": now_ms - 36_000_000, "awake": 1})
    run_call(impatient.redis, sweep_tenant(impatient.ledger))
    sweep(impatient)
    assert last_end(impatient, "a") is None
    impatient.redis.hset(SWEEP, "awake", now_ms - 1000 * (PATIENCE_S + 5))
    sweep(impatient)
    assert last_end(impatient, "a") is not None


def test_unless_set_otherwise_that_is_a_day(herd: Herd) -> None:
    herd.redis.hset(SWEEP, "awake", 1)
    timeout_s = Ledger.from_settings(Settings()).unserved_timeout_s
    by_default = replace(herd, ledger=replace(herd.ledger, unserved_timeout_s=timeout_s))
    for job_id, seconds in (("young", 86_000), ("old", 87_000)):
        submit(by_default, job_id)
        grow_old(by_default, job_id, seconds)
    sweep(by_default)
    assert last_end(by_default, "young") is None
    assert last_end(by_default, "old") is not None


def test_at_zero_it_waits_for_ever(herd: Herd) -> None:
    herd.redis.hset(SWEEP, "awake", 1)
    submit(herd, "a")
    grow_old(herd, "a", 10**6)
    sweep(replace(herd, ledger=replace(herd.ledger, unserved_timeout_s=0)))
    assert last_end(herd, "a") is None


# What a scaler counts.


def test_only_what_is_due_counts_as_such_and_a_bare_message_does(herd: Herd) -> None:
    for number in range(3):
        submit(herd, f"due{number}")
        submit(herd, f"later{number}", job=JOB.model_copy(update={"not_before": 2**50}))
    assert counts(herd)[QUEUE].num_due == 3
    herd.redis.lpush(QUEUE, "a bare message")
    assert counts(herd)[QUEUE].num_due == 4
    herd.redis.delete(QUEUE)  # messages that were lost come again
    assert counts(herd)[QUEUE].num_due == 3


def test_a_bare_message_for_a_model_without_workers_is_seen(herd: Herd) -> None:
    herd.redis.lpush(ELSEWHERE, "a bare message")
    assert list(counts(herd)) == [QUEUE]
    found = run_call(herd.redis, Overview().counts(QUEUE, ELSEWHERE))
    assert {one.queue: one.num_due for one in found.queues} == {QUEUE: 0, ELSEWHERE: 1}
