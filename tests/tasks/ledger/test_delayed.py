"""`not_before`: accepted now, run from then on, and everything else works meanwhile."""

from typing import Any

import pytest

from llama_herd.tasks.ledger.answers import Cancellation, Early, Ended, Purge, Submission, Swept, Yours
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.sweep import SWEEP_MAX_LOOKS
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import QUEUE, Herd, ids, started, sweep

pytestmark = pytest.mark.redis

DELAY_MS = 3_600_000


def later(herd: Herd, **fields: Any) -> GenerationJob:
    """A job that is due in an hour, by the clock of Redis."""
    seconds, _ = herd.redis.time()
    return GenerationJob(prompt="x", model="tales", not_before=1000 * seconds + DELAY_MS, **fields)


def let_it_be_due(herd: Herd, job_id: str, ago_ms: int = 0) -> None:
    """Move a delayed job's time to `ago_ms` before now."""
    seconds, micros = herd.redis.time()
    due_ms = 1000 * seconds + micros // 1000 - ago_ms
    herd.redis.hset(herd.ledger.job_key(job_id), "due_ms", due_ms)
    for index in ("pending", "delayed"):
        herd.redis.zadd(f"herd:default:{index}", {job_id: due_ms}, xx=True)


def test_it_is_accepted_without_a_message_until_it_is_due(herd: Herd) -> None:
    herd.submit("a", later(herd))
    assert herd.messages() == []
    assert sweep(herd) == Swept()
    assert herd.messages() == []
    let_it_be_due(herd, "a")
    sweep(herd)
    assert ids(herd) == ["a"]
    sweep(herd)
    assert ids(herd) == ["a"]
    assert isinstance(herd.claim("a"), Yours)
    assert herd.redis.exists("herd:default:delayed", "herd:default:pending") == 0


def test_a_time_that_is_past_delays_nothing(herd: Herd) -> None:
    herd.submit("a", GenerationJob(prompt="x", not_before=1))
    assert ids(herd) == ["a"]
    claimed = herd.claimed("a")
    assert claimed.due_ms == int(herd.field("a", "submitted_ms"))


def test_what_it_waited_counts_from_when_it_was_due(herd: Herd) -> None:
    herd.submit("a", later(herd))
    let_it_be_due(herd, "a", ago_ms=2_000)
    herd.redis.hincrby(herd.ledger.job_key("a"), "submitted_ms", -DELAY_MS)
    assert 2.0 <= herd.claimed("a").waited_s < 60


def test_a_late_sweep_does_not_take_it_for_overtaken(herd: Herd) -> None:
    """It was due an hour ago, but its message stands where it was pushed: behind what came meanwhile."""
    herd.submit("a", later(herd))
    let_it_be_due(herd, "a", ago_ms=DELAY_MS)
    herd.submit("b")
    sweep(herd)
    sweep(herd)
    assert ids(herd) == ["b", "a"]


def test_a_lost_message_of_a_job_that_was_due_comes_back(herd: Herd) -> None:
    herd.submit("a", later(herd))
    let_it_be_due(herd, "a")
    sweep(herd)
    herd.redis.rpop(QUEUE)
    herd.pass_time("a", 10_000)
    assert sweep(herd) == Swept(("a",))


def test_a_worker_that_dies_after_it_was_due_does_not_delay_it_again(herd: Herd) -> None:
    herd.submit("a", later(herd))
    let_it_be_due(herd, "a")
    sweep(herd)
    herd.claim("a", "one")
    herd.emit("one", started("a"))
    herd.pass_lease("a")
    assert sweep(herd) == Swept(("a",))
    assert isinstance(herd.claim("a", "two"), Yours)


def test_a_released_job_is_not_delayed_again(herd: Herd) -> None:
    herd.submit("a", later(herd))
    let_it_be_due(herd, "a", ago_ms=5_000)
    claimed = herd.claimed("a")
    run_call(herd.redis, herd.ledger.release("a", "one", claimed.epoch))
    assert herd.redis.zscore("herd:default:pending", "a") >= claimed.due_ms + 5_000
    assert herd.redis.exists("herd:default:delayed") == 0


def test_a_bare_message_that_comes_early_is_recorded_and_not_run(herd: Herd) -> None:
    job, envelope = later(herd), Envelope.from_request({"id": "a", "root_id": "r"}, None, QUEUE)
    for _ in range(2):  # its message may come twice: a worker died before it could acknowledge
        assert run_call(herd.redis, herd.ledger.claim("a", "one", job=job, envelope=envelope)) == Early()
    assert herd.events("a") == []
    let_it_be_due(herd, "a")
    sweep(herd)
    assert ids(herd) == ["a"]
    assert isinstance(herd.claim("a"), Yours)


def test_it_can_be_cancelled_and_purged_and_counted_meanwhile(herd: Herd) -> None:
    """No message of one that is cancelled comes any more. Celery is told of it, but of no purged one."""
    for name in "ab":
        herd.submit(name, later(herd))
    assert run_call(herd.redis, herd.ledger.num_pending()) == 2
    assert run_call(herd.redis, herd.ledger.cancel("a")) is Cancellation.CANCELLED
    assert run_call(herd.redis, herd.ledger.purge("b")) is Purge.PURGED
    for name in "ab":
        let_it_be_due(herd, name)
    sweep(herd)
    assert ids(herd) == []
    assert [one.job_id for one in run_call(herd.redis, herd.ledger.owed(10, 0))] == ["a"]
    assert herd.claim("a") is Ended.FINISHED
    assert herd.redis.exists("herd:default:delayed", "herd:default:pending", "herd:default:waiting") == 0


def test_its_deadline_is_kept(herd: Herd) -> None:
    job = later(herd)
    assert job.not_before is not None
    herd.submit("a", job.model_copy(update={"deadline_ms": job.not_before + 1}))
    let_it_be_due(herd, "a")
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    sweep(herd)
    assert herd.claim("a") is Ended.EXPIRED


def test_one_whose_deadline_comes_first_is_told_to_celery_too(herd: Herd) -> None:
    """As where more are due at once than sweeps can push in time."""
    job = later(herd)
    assert job.not_before is not None
    herd.submit("a", job.model_copy(update={"deadline_ms": job.not_before + 1}))
    deadlines = "herd:default:pending:deadlines"
    herd.redis.zadd(deadlines, {"a": 1})
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)
    sweep(herd)
    assert herd.field("a", "state") == "failed"
    assert [one.job_id for one in run_call(herd.redis, herd.ledger.owed(10, 0))] == ["a"]
    assert herd.redis.exists("herd:default:delayed", "herd:default:pending", deadlines) == 0


def test_one_whose_queue_is_spoilt_can_be_cancelled(herd: Herd) -> None:
    herd.submit("a", later(herd))
    herd.redis.set(QUEUE, "no list")
    assert run_call(herd.redis, herd.ledger.cancel("a")) is Cancellation.CANCELLED
    assert herd.field("a", "state") == "cancelled"


def test_the_same_job_again_is_the_same_job(herd: Herd) -> None:
    job = later(herd)
    answers = [
        run_call(herd.redis, herd.ledger.submit("a", job, Envelope.for_job("a", QUEUE))).kind
        for _ in range(2)
    ]
    assert answers == [Submission.SUBMITTED, Submission.EXISTS]
    assert herd.redis.zcard("herd:default:delayed") == 1


@pytest.mark.long
def test_many_that_are_due_at_once_are_pushed_in_steps_and_in_order(herd: Herd) -> None:
    names = [f"job-{number:04}" for number in range(SWEEP_MAX_LOOKS + 10)]
    for place, name in enumerate(names):
        herd.submit(name, later(herd))
        let_it_be_due(herd, name, ago_ms=len(names) - place)
    sweep(herd)
    assert ids(herd) == names[:SWEEP_MAX_LOOKS]
    sweep(herd)
    assert ids(herd) == names
