"""Which errors are tried again, for how long a job waits before, and what a worker does with it."""

from typing import Any

import pytest
from redis import Redis

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.ledger.answers import JobRecord
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End, Failure, Started, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.terms import MAX_BACKOFF_S, MAX_RETRIES
from llama_herd.worker.jobs.publisher import RefusedJob
from llama_herd.worker.jobs.retries import DEFAULT_BACKOFF_S, Retries
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from tests.chaos.harness.patience import wait_until
from tests.worker.jobs.publisher_desk import OWNER, Desk, LosesReplies
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import the_end

LOST = Failure(code=ErrorCode.OUT_OF_MEMORY, message="no room")


def record_of(redis: Redis, job_id: str) -> JobRecord:
    record = run_call(redis, Ledger().record(job_id))
    assert record is not None
    return record


def test_waits_double_up_to_an_hour_and_half_of_each_is_chance() -> None:
    job = GenerationJob(prompt="x", retries=MAX_RETRIES, retry_backoff_s=3)
    longest_s = [Retries.of(job, done).longest_s for done in range(MAX_RETRIES)]
    assert longest_s[:3] == [3, 6, 12]
    assert max(longest_s) == longest_s[-1] == MAX_BACKOFF_S
    delays_ms = {Retries.of(job, 1).draw_delay_ms() for _ in range(200)}
    assert len(delays_ms) > 100
    assert 3000 <= min(delays_ms) < 3600
    assert 5400 < max(delays_ms) <= 6000


def test_a_job_that_says_nothing_is_not_tried_again_and_one_that_names_no_wait_has_a_second() -> None:
    assert Retries.of(GenerationJob(prompt="x"), 0).num_left == 0
    assert Retries.of(GenerationJob(prompt="x", retries=2), 0).longest_s == DEFAULT_BACKOFF_S == 1
    assert Retries.of(GenerationJob(prompt="x", retries=2, retry_backoff_s=0), 1).draw_delay_ms() == 0
    assert [Retries.of(GenerationJob(prompt="x", retries=2), done).num_left for done in range(4)] == [
        2,
        1,
        0,
        0,
    ]


@pytest.mark.redis
@pytest.mark.parametrize("retries", [None, 0, 1])
@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_is_tried_again_if_it_is_retriable_and_retries_are_left(
    redis: Redis, code: ErrorCode, retries: int | None
) -> None:
    """Wherever it comes from: from the engine, and from what makes a job ready for it."""
    desk = Desk(redis)
    error = Failure(code=code, message="no")
    for job_id in ("computed", "refused"):
        attempt = desk.open(job_id, retries=retries)
        if job_id == "computed":
            desk.start(attempt)
            desk.fail(attempt, error)
        else:
            desk.publisher.put([RefusedJob(attempt, "error", error)])
        desk.send()
        is_tried = bool(code.retriable and retries)
        record = record_of(redis, job_id)
        assert (record.state, record.retries) == (("queued", 1) if is_tried else ("failed", 0))
        assert (record.retry_error, record.error) == ((error, None) if is_tried else (None, error))
        assert (desk.released, desk.ended) == (([job_id], []) if is_tried else ([], [job_id]))
        assert desk.in_hand == []
        desk.released.clear()
        desk.ended.clear()
    assert desk.figures.num_retries == 2 * bool(code.retriable and retries)
    assert desk.figures.num_ended == 2 - desk.figures.num_retries


SEEDED = {"max_tokens": 6, "ignore_eos": True, "seed": 3}
PATIENT = GenerationJob.model_validate(
    {"prompt": "a tale", "sampling": SEEDED, "retries": 2, "retry_backoff_s": 0, "flush_ms": 0}
)


def wait_for_retries(redis: Redis, job_id: str, num: int) -> None:
    wait_until(lambda: record_of(redis, job_id).retries == num, f"{num} retries of {job_id}")


def ids_of(redis: Redis, job_id: str) -> list[int]:
    events = run_call(redis, Ledger().read(job_id))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [one for event in events if isinstance(event, Token) for one in event.ids]


@pytest.mark.redis
@pytest.mark.parametrize(
    ("owner", "name", "num_passes"), [(Llama, "forward", (2, 1)), (SequenceMaker, "sequences", (0, 0))]
)
def test_a_worker_tries_each_retriable_error_again_from_the_recorded_tokens(
    redis: Redis,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    num_passes: tuple[int, int],
) -> None:
    """All codes, raised in its forward and where jobs are made ready: ids are those of a run without."""
    act, coming = getattr(owner, name), list[GenerationError | None]()

    def act_or_fail(*args: Any, **options: Any) -> Any:
        if coming and (error := coming.pop(0)):
            raise error
        return act(*args, **options)

    monkeypatch.setattr(owner, name, act_or_fail)

    def run(job_id: str, num_retries: int) -> End:
        """Run a job to its end; its message comes again for each retry."""
        run_call(redis, Ledger().submit(job_id, PATIENT, Envelope.for_job(job_id, "herd.tiny")))
        for num in range(num_retries + 1):
            wait_for_retries(redis, job_id, num)
            service.take(SentMessage(job_id))
        return the_end(redis, job_id)

    run("whole", 0)
    whole = ids_of(redis, "whole")
    for code in ErrorCode:
        error = GenerationError(code, "no")
        coming[:] = [one for num in num_passes for one in (*[None] * num, error)]
        end, ids = run(code, 2 * code.retriable), ids_of(redis, code)
        coming.clear()
        assert end.error == (None if code.retriable else Failure(code=code, message="no"))
        assert ids == whole if code.retriable else ids == whole[: len(ids)]
        starts = [one for one in run_call(redis, Ledger().read(code)) if isinstance(one, Started)]
        assert end.attempts == len(starts) == record_of(redis, code).attempts
        assert not code.retriable or [one.retries for one in starts] == ([0, 1, 2] if num_passes[0] else [2])


@pytest.mark.redis
def test_the_last_failure_ends_it_with_its_own_error(redis: Redis) -> None:
    desk = Desk(redis)
    attempt = desk.open("job", retries=1, retry_backoff_s=0)
    desk.fail(attempt, Failure(code=ErrorCode.MODEL_ERROR, message="first"))
    desk.send()
    claimed = run_call(redis, desk.ledger.claim("job", OWNER))
    again = desk.attempt_at("job", claimed, GenerationJob(prompt="hi", retries=1))
    desk.fail(again, LOST)
    desk.send()
    assert desk.result("job").error == LOST
    record = record_of(redis, "job")
    assert (record.retries, record.retries_left, record.retry_ms) == (1, 0, None)
    assert record.retry_error == Failure(code=ErrorCode.MODEL_ERROR, message="first")


@pytest.mark.redis
def test_what_it_has_gathered_is_published_before(redis: Redis) -> None:
    desk = Desk(redis)
    attempt = desk.open("job", retries=1, flush_ms=60_000)
    desk.start(attempt)
    desk.say(attempt, 1, 2)
    desk.fail(attempt, LOST)
    desk.say(attempt, 3)  # of a step that was under way
    desk.send()
    assert [event.type for event in desk.events("job")] == ["started", "token"]
    assert record_of(redis, "job").n == 2


@pytest.mark.redis
def test_an_output_that_fails_takes_the_others_along_once(redis: Redis) -> None:
    desk = Desk(redis)
    attempt = desk.open("job", retries=1, sampling={"n": 3})
    desk.start(attempt)
    for choice in range(3):
        desk.fail(attempt, LOST, choice)
    desk.say(attempt, 1, choice=2)
    desk.send()
    assert (record_of(redis, "job").retries, desk.figures.num_retries) == (1, 1)


@pytest.mark.redis
def test_a_lost_reply_puts_it_back_once(redis: Redis) -> None:
    desk = Desk(redis, LosesReplies(redis, 2))  # type: ignore[arg-type]
    desk.fail(desk.open("job", retries=2), LOST)
    desk.send()
    assert record_of(redis, "job").retries == 1
    assert (desk.released, desk.lost) == (["job"], [])


@pytest.mark.redis
def test_events_that_redis_forgot_are_sent_again_before_it_is_put_back(redis: Redis) -> None:
    desk = Desk(redis)
    attempt = desk.open("job", retries=1)
    for words in ((1,), (2, 3)):
        desk.say(attempt, *words)
        desk.send()
    before = desk.events("job")
    redis.delete(desk.ledger.events_key("job"))
    redis.xadd(desk.ledger.events_key("job"), {"e": before[0].to_json()}, id="1-0")
    redis.hset(desk.ledger.job_key("job"), mapping={"seq": 1, "n": 1})
    desk.fail(attempt, LOST)
    desk.send()
    assert desk.events("job") == before
    assert record_of(redis, "job").state == "queued"


@pytest.mark.redis
@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
def test_a_cancel_that_came_before_ends_it(redis: Redis, reason: Any) -> None:
    desk = Desk(redis)
    attempt = desk.open("job", retries=1)
    desk.say(attempt, 1)
    desk.send()
    run_call(redis, desk.ledger.cancel("job", reason))
    desk.fail(attempt, LOST)
    desk.send()
    result = desk.result("job")
    assert (result.finish_reason, result.ids, result.error) == (reason, (1,), None)
    assert desk.ended == ["job"]


@pytest.mark.redis
def test_one_that_cannot_be_tried_before_its_deadline_ends_with_its_error_at_once(redis: Redis) -> None:
    desk = Desk(redis)
    desk.fail(desk.open("job", retries=3, retry_backoff_s=100, timeout_s=40), LOST)
    desk.send()
    assert desk.result("job").error == LOST
    assert (desk.ended, desk.released) == (["job"], [])


@pytest.mark.redis
def test_one_that_another_worker_has_is_let_go(redis: Redis) -> None:
    desk = Desk(redis)
    attempt = desk.open("job", retries=1)
    redis.hset(desk.ledger.job_key("job"), "owner", "another")
    desk.fail(attempt, LOST)
    desk.send()
    assert (desk.lost, desk.ended) == (["job"], [])
    assert record_of(redis, "job").state == "running"


@pytest.mark.redis
def test_where_it_cannot_be_put_back_it_ends_with_its_error(redis: Redis) -> None:
    """Somebody has written something else into the list of delayed jobs."""
    desk = Desk(redis)
    attempt = desk.open("job", retries=1)
    redis.set("herd:default:delayed", "spoilt")
    desk.fail(attempt, LOST)
    desk.send()
    redis.delete("herd:default:delayed")
    assert desk.result("job").error == LOST
