"""What a publisher counts, as the ledger's answers say it."""

import pytest
from redis import Redis

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Failure
from llama_herd.worker.jobs.figures import JobFigures
from llama_herd.worker.jobs.publisher import RefusedJob
from tests.worker.jobs.publisher_desk import Desk, LosesReplies, new_attempt

pytestmark = pytest.mark.redis


def run_job(desk: Desk, job_id: str) -> None:
    attempt = desk.open(job_id)
    desk.start(attempt)
    desk.say(attempt, 1, 2)
    desk.say(attempt, 3, end="stop")
    desk.send()


def test_a_job_counts_once_with_each_of_its_times(redis: Redis) -> None:
    desk = Desk(redis)
    run_job(desk, "a")
    figures = desk.figures
    times = (figures.queue_s, figures.first_token_s, figures.prefill_s, figures.decode_s, figures.total_s)
    assert [sum(one.counts) for one in times] == [1] * 5
    assert (figures.num_prompt_tokens.total, figures.num_drawn_tokens.total) == (1, 3)
    assert dict(figures.ends) == {"stop": 1}
    assert sum(figures.call_s.counts) == 1
    assert desk.publisher.lag_s == 0


def test_a_job_that_another_attempt_had_started_is_a_takeover_and_no_second_first_token(redis: Redis) -> None:
    desk = Desk(redis)
    attempt = desk.open("a")
    desk.start(attempt)
    desk.say(attempt, 1)
    desk.send()
    run_call(redis, desk.ledger.release("a", "owner-1", 1))
    claimed = run_call(redis, desk.ledger.claim("a", "owner-1"))
    assert isinstance(claimed, Yours)
    again = new_attempt("a", claimed)
    desk.claims.begin(again)
    desk.start(again)
    desk.say(again, 2, end="stop")
    desk.send()
    figures = desk.figures
    assert figures.num_taken_over == 1
    assert (sum(figures.queue_s.counts), sum(figures.first_token_s.counts)) == (1, 1)
    assert figures.num_drawn_tokens.total == 2


def test_a_fenced_event_a_refused_job_and_a_repeated_call_are_counted(redis: Redis) -> None:
    desk = Desk(redis, LosesReplies(redis, 1))  # type: ignore[arg-type]
    run_job(desk, "a")
    assert desk.figures.num_repeats == 1
    attempt = desk.open("b")
    redis.hset(desk.ledger.job_key("b"), "owner", "another")
    desk.start(attempt)
    desk.send()
    assert desk.figures.num_fenced == 1
    failure = Failure(code=ErrorCode.INVALID_JOB, message="no")
    desk.publisher.put([RefusedJob(desk.open("c"), "error", failure)])
    desk.send()
    figures = desk.figures
    assert figures.num_refused == 1
    assert dict(figures.ends) == {"stop": 1, "invalid_job": 1}
    assert sum(figures.num_prompt_tokens.counts) == 1


def test_the_figures_of_two_tenants_are_their_sum(redis: Redis) -> None:
    desk = Desk(redis)
    run_job(desk, "a")
    figures = desk.figures
    both = figures + figures
    assert both.total_s == figures.total_s + figures.total_s
    assert dict(both.ends) == {"stop": 2}
    assert JobFigures() + JobFigures() == JobFigures()
