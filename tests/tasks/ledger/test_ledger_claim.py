"""CLAIM: every answer, and what the record is afterwards."""

from collections.abc import Callable

import pytest

from llama_herd.tasks.ledger.answers import (
    Adopt,
    Busy,
    Cancellation,
    CancelReason,
    Ended,
    Renewal,
    Settled,
    Unknown,
    Yours,
)
from llama_herd.tasks.ledger.held_jobs import HeldJob, prepare
from llama_herd.tasks.ledger.ledger import SOUND_MS, SOUND_TOKENS, Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.sweep import sweep_tenant
from llama_herd.tasks.protocol.events import End, Failure
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import JOB, QUEUE, Herd, end, started, sweep, token

pytestmark = pytest.mark.redis


def only_end(herd: Herd, job_id: str) -> End:
    """The one final event of a job."""
    *others, last = herd.events(job_id)
    assert isinstance(last, End)
    assert not any(isinstance(event, End) for event in others)
    return last


def test_a_waiting_job_is_yours_with_its_body(herd: Herd) -> None:
    herd.submit("a")
    answer = herd.claim("a", "one")
    assert isinstance(answer, Yours)
    assert (answer.epoch, answer.n, answer.seq, answer.deaths, answer.attempts) == (1, 0, 0, 0, 0)
    assert answer.body == JOB.to_json()
    assert 0 <= answer.now_ms - answer.due_ms < 10_000
    assert answer.due_ms == int(herd.field("a", "due_ms")) == int(herd.field("a", "submitted_ms"))
    assert herd.redis.zrange("herd:default:pending", 0, -1) == []
    assert herd.redis.zrange("herd:default:leases", 0, -1) == [b"a"]
    assert herd.field("a", "state") == "running"


def test_a_second_delivery_is_busy_for_others_and_adopted_by_its_owner(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"), token("a", 2, 0, 5, 6))
    busy, adopt = herd.claim("a", "two"), herd.claim("a", "one")
    assert isinstance(busy, Busy)
    assert 0 < busy.remaining_ms <= herd.ledger.lease_ms
    assert isinstance(adopt, Adopt)
    assert (adopt.epoch, adopt.n, adopt.seq, adopt.attempts) == (1, 2, 2, 1)


def test_a_job_whose_lease_passed_is_yours_from_its_recorded_tokens_on(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"), token("a", 2, 0, 5, 6))
    herd.pass_lease("a")
    answer = herd.claim("a", "two")
    assert isinstance(answer, Yours)
    assert (answer.epoch, answer.n, answer.seq, answer.deaths, answer.attempts) == (2, 2, 2, 1, 1)


def test_an_owner_whose_own_lease_passed_gets_a_new_epoch(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.pass_lease("a")
    assert isinstance(herd.claim("a", "one"), Yours)
    assert herd.kinds("one", started("a", epoch=1)) == ["fenced"]


def test_past_its_lease_a_job_is_its_owners_until_a_sweep_has_given_the_owner_up(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.fall_silent("a")
    assert herd.claim("a", "two") == Busy(0)
    assert isinstance(herd.claim("a", "one"), Adopt)
    assert sweep(herd).jobs == ("a",)
    assert isinstance(herd.claim("a", "two"), Yours)


def test_after_an_outage_no_second_delivery_takes_a_job_from_its_live_owner(herd: Herd) -> None:
    """The lease ran out while Redis stood still, and so could not be renewed."""
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"))
    herd.fall_silent("a")
    assert run_call(herd.redis, sweep_tenant(herd.ledger)).held
    assert herd.claim("a", "two") == Busy(0)
    assert herd.kinds("one", token("a", 2, 0)) == ["ok"]
    assert sweep(herd).jobs == ()
    assert isinstance(herd.claim("a", "two"), Busy)


def test_an_owner_that_comes_back_before_it_is_replaced_is_not_given_up_any_more(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.pass_lease("a")
    assert herd.renew("a", "one").kind is Renewal.OK
    herd.fall_silent("a")
    assert herd.claim("a", "two") == Busy(0)


def test_a_finished_job_says_so(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"), end("a", 2, 0))
    assert herd.claim("a", "two") is Ended.FINISHED
    assert len(herd.events("a")) == 2


def test_a_job_of_which_celery_knows_has_nothing_left_to_do(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"), end("a", 2, 0))
    assert run_call(herd.redis, herd.ledger.settle("a")) is False
    assert herd.claim("a", "two") == Settled()
    assert herd.redis.ttl(herd.ledger.job_key("a")) > 0


def test_a_note_on_a_job_that_is_forgotten_leaves_nothing(herd: Herd) -> None:
    assert run_call(herd.redis, herd.ledger.settle("a")) is False
    assert herd.redis.keys() == []
    run_call(herd.redis, herd.ledger.purge("a", mark=True))
    assert run_call(herd.redis, herd.ledger.settle("a")) is True
    assert herd.redis.hgetall(herd.ledger.job_key("a")) == {b"state": b"purged"}


def test_an_unknown_job_without_a_body_is_unknown(herd: Herd) -> None:
    assert herd.claim("a") == Unknown()
    assert herd.redis.keys() == []


def test_a_bare_message_makes_its_record_once(herd: Herd) -> None:
    envelope = Envelope.from_request({"id": "a"}, None, QUEUE)
    other = GenerationJob(prompt="other")
    first = run_call(herd.redis, herd.ledger.claim("a", "one", job=JOB, envelope=envelope))
    again = run_call(herd.redis, herd.ledger.claim("a", "one", job=other, envelope=envelope))
    assert isinstance(first, Yours)
    assert isinstance(again, Adopt)
    assert again.body == JOB.to_json()
    assert herd.field("a", "queue") == QUEUE
    assert herd.field("a", "envelope") == envelope.text
    assert herd.redis.zcard("herd:default:pending") == 0


def ask_to_end(herd: Herd, *reasons: CancelReason) -> None:
    """The first reason counts."""
    for reason in reasons:
        assert run_call(herd.redis, herd.ledger.cancel("a", reason)) is Cancellation.ASKED
    herd.pass_lease("a")


def cancel(herd: Herd) -> None:
    ask_to_end(herd, "cancelled", "deadline", "revoked")


def cancel_late(herd: Herd) -> None:
    ask_to_end(herd, "deadline", "cancelled")


def pass_deadline(herd: Herd) -> None:
    herd.redis.hset(herd.ledger.job_key("a"), "deadline_ms", 1)


POISONED = Failure(code="poisoned", message="3 workers died while preparing or running this job")


def kill_three_times(herd: Herd) -> None:
    herd.redis.hset(herd.ledger.job_key("a"), "deaths", 3)
    herd.pass_lease("a")


@pytest.mark.parametrize(
    ("happen", "answer", "finish_reason", "state"),
    [
        (cancel, Ended.CANCELLED, "cancelled", "cancelled"),
        (cancel_late, Ended.EXPIRED, "deadline", "failed"),
        (pass_deadline, Ended.EXPIRED, "deadline", "failed"),
        (kill_three_times, Ended.POISON, "error", "failed"),
    ],
)
def test_a_claim_that_ends_a_job_writes_the_final_event_first(
    herd: Herd, happen: Callable[[Herd], None], answer: Ended, finish_reason: str, state: str
) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"), token("a", 2, 0, 5, 6))
    happen(herd)
    subscriber = herd.redis.pubsub()
    subscriber.subscribe(herd.ledger.channel("a"))
    subscriber.get_message(timeout=20)

    assert herd.claim("a", "two") is answer

    last = only_end(herd, "a")
    assert (last.seq, last.epoch, last.n, last.finish_reason) == (3, 2, 2, finish_reason)
    assert (last.usage, last.text_sha256, last.worker, last.attempts) == (None, None, "w", 1)
    assert last.error == (POISONED if answer is Ended.POISON else None)
    message = subscriber.get_message(timeout=20)
    assert message is not None
    assert message["data"] == herd.redis.xrevrange(herd.ledger.events_key("a"), count=1)[0][1][b"e"]
    assert herd.field("a", "state") == state
    assert herd.redis.ttl(herd.ledger.job_key("a")) > 0
    assert herd.redis.ttl(herd.ledger.events_key("a")) > 0
    assert herd.redis.exists("herd:default:leases", "herd:default:pending") == 0
    # Whoever ran it is fenced, and a second claim changes nothing.
    assert herd.kinds("one", token("a", 3, 2), end("a", 4, 3)) == ["fenced", "fenced"]
    assert herd.claim("a", "two") is Ended.FINISHED
    assert len(herd.events("a")) == 3


def test_a_live_owner_does_not_outlast_the_deadline(herd: Herd) -> None:
    herd.submit("a", JOB.model_copy(update={"deadline_ms": 1}))
    assert herd.claim("a", "one") is Ended.EXPIRED


def test_a_timeout_becomes_a_deadline_once_it_is_known_when_the_job_is_due(herd: Herd) -> None:
    job = JOB.model_copy(update={"timeout_s": 0.25})
    herd.submit("a", job)
    herd.submit("a", job)  # the same job, although it is submitted later
    herd.submit("b", job.model_copy(update={"not_before": 2**45}))
    run_call(herd.redis, herd.ledger.claim("c", "one", job=job, envelope=Envelope.for_job("c", QUEUE)))
    for job_id in "abc":
        assert int(herd.field(job_id, "deadline_ms")) - int(herd.field(job_id, "due_ms")) == 250
    assert int(herd.field("b", "due_ms")) == 2**45


def test_a_bare_message_past_its_deadline_is_expired_at_once(herd: Herd) -> None:
    late = JOB.model_copy(update={"deadline_ms": 1})
    call = herd.ledger.claim("a", "one", job=late, envelope=Envelope.for_job("a", QUEUE))
    assert run_call(herd.redis, call) is Ended.EXPIRED
    assert only_end(herd, "a").seq == 1
    assert herd.redis.exists("herd:default:pending") == 0


def test_deaths_count_until_an_attempt_has_recorded_enough_tokens(herd: Herd) -> None:
    herd.submit("a")
    for epoch in (1, 2):
        assert herd.claimed("a").deaths == epoch - 1
        herd.emit("one", started("a", seq=2 * epoch - 1, epoch=epoch, i=epoch - 1))
        herd.emit("one", token("a", 2 * epoch, epoch - 1, epoch=epoch))
        herd.pass_lease("a")
    last = herd.claimed("a")
    assert (last.deaths, last.attempts) == (2, 2)
    herd.emit("one", started("a", seq=5, epoch=3, i=2), token("a", 6, 2, *range(SOUND_TOKENS - 1), epoch=3))
    assert herd.field("a", "deaths") == "2"
    herd.emit("one", token("a", 7, 1 + SOUND_TOKENS, epoch=3))
    assert herd.field("a", "deaths") == "0"
    herd.pass_lease("a")
    assert herd.claimed("a").deaths == 1
    assert herd.claimed("a").attempts == 3


def test_an_attempt_that_ran_long_and_brought_a_token_makes_deaths_forgotten(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.emit("one", started("a"))
    herd.pass_lease("a")
    assert herd.claimed("a").deaths == 1
    herd.emit("one", started("a", seq=2, epoch=2))
    herd.redis.hincrby(herd.ledger.job_key("a"), "started_ms", -SOUND_MS)
    assert herd.field("a", "deaths") == "1", "time alone shows nothing"
    herd.emit("one", token("a", 3, 0, epoch=2))
    assert herd.field("a", "deaths") == "0"


@pytest.mark.long
def test_a_death_counts_against_what_was_prepared_and_not_against_what_waited(herd: Herd) -> None:
    """Whatever the worker had in hand: most of it only waited for room."""
    names = [f"job-{number}" for number in range(264)]
    for name in names:
        herd.submit(name)
    for epoch in (1, 2):
        held = [HeldJob(herd.ledger, name, herd.claimed(name).epoch) for name in names]
        run_call(herd.redis, prepare("one", held))
        run_call(herd.redis, prepare("one", held[1:], is_done=True))
        herd.emit("one", *(started(name, seq=epoch, epoch=epoch) for name in names[1:9]))
        for name in names:
            herd.pass_lease(name)
    deaths = [herd.claimed(name).deaths for name in names]
    assert deaths == [2] * 9 + [0] * 255


def test_what_is_not_the_owners_any_more_is_not_noted_as_prepared(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.pass_lease("a")
    herd.claim("a", "two")
    herd.redis.set(herd.ledger.job_key("odd"), "no hash")
    held = [HeldJob(herd.ledger, *one) for one in [("a", 1), ("odd", 1), ("none", 1), ("a", 2)]]
    assert run_call(herd.redis, prepare("one", held)) == [False] * 4
    assert run_call(herd.redis, prepare("two", held)) == [False, False, False, True]


def test_claims_that_never_begin_count_against_nobody(herd: Herd) -> None:
    herd.submit("a")
    for epoch in range(1, 6):
        assert herd.claimed("a").epoch == epoch
        herd.pass_lease("a")
    assert herd.claimed("a").deaths == 0


def test_an_end_that_a_script_writes_names_the_last_worker_or_nobody(herd: Herd) -> None:
    for name in ("waited", "held"):
        herd.submit(name)
    run_call(herd.redis, Ledger(worker="first", lease_ms=60_000).claim("held", "one"))
    herd.pass_lease("held")
    run_call(herd.redis, Ledger(worker="second", lease_ms=60_000).claim("held", "two"))
    herd.emit("two", started("held", epoch=2))
    herd.pass_lease("held")
    for name in ("waited", "held"):
        run_call(herd.redis, herd.ledger.cancel(name))
    assert (only_end(herd, "waited").worker, only_end(herd, "waited").attempts) == (None, 0)
    assert (only_end(herd, "held").worker, only_end(herd, "held").attempts) == ("second", 1)
