"""The checker sees each law broken: a checker that is always content proves nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.outbox import WebhookEntry
from llama_herd.tasks.protocol.events import End, Event, Failure, Started, Token, Vectors
from llama_herd.tasks.protocol.result import Result
from tests.chaos.harness.checker import Checker, Evidence
from tests.chaos.harness.listener import event_fingerprint
from tests.chaos.harness.sabotage import POISONS
from tests.tasks.herd import Herd

TEXT_SHA256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of "hello"
STARTED = Started(at_ms=1, seq=1, job="j", epoch=1, attempt=1, worker="w", model="m", seed=7)
HEL = Token(seq=2, job="j", epoch=1, i=0, ids=(5, 6), text="hel")
LO = Token(seq=3, job="j", epoch=2, i=2, ids=(7,), text="lo")
END = End(seq=4, job="j", epoch=2, finish_reason="stop", n=3, text_sha256=TEXT_SHA256, attempts=1)


TOLD = WebhookEntry("msg_j", "job.completed", "j", "done", ended_ms=1, finish_reason="stop")


def prints(*events: Event) -> list[int]:
    return [event_fingerprint(event.to_json().encode()) for event in events]


def evidence(*events: Event, **changes: Any) -> Evidence:
    """A job that ended well, but for what is changed."""
    events = events or (STARTED, HEL, LO, END)
    result = Result.from_events([*events, END]).model_dump(mode="json")
    good = Evidence(
        "j",
        [f"{number}-0" for number in range(1, len(events) + 1)],
        events,
        {"state": "done", "seq": "4", "n": "3", "lease": "0"},
        {"status": "SUCCESS", "result": result},
        [],
        written=prints(*events),
        heard=[prints(HEL, END)],
        told=TOLD,
    )
    return replace(good, **changes)


def changed(event: Any, **fields: Any) -> Any:
    return event.model_copy(update=fields)


def test_a_good_job_has_no_fault() -> None:
    assert evidence().violations() == []


LATE = changed(END, finish_reason="deadline", text_sha256=None)
FAILED = changed(LATE, finish_reason="error")


TEXTS = changed(STARTED, texts=3)
FIRST = Vectors(seq=2, job="j", epoch=1, texts=(1,), vectors=("AAAAAA==",))
REST = Vectors(seq=3, job="j", epoch=2, texts=(2, 0), vectors=("AACAPw==", "AAAAQA=="))


def test_good_vectors_have_no_fault() -> None:
    found = evidence(TEXTS, FIRST, REST, changed(END, text_sha256=None), heard=[])
    assert found.violations() == []
    assert found.vectors == {1: "AAAAAA==", 2: "AACAPw==", 0: "AAAAQA=="}
    assert found.num_claims == 2


def failed(end: End, exc_type: str) -> Evidence:
    """A job that failed, and what Celery says of it."""
    return evidence(
        STARTED,
        HEL,
        LO,
        end,
        record={"state": "failed", "seq": "4", "n": "3", "lease": "0"},
        celery={"status": "FAILURE", "result": {"exc_type": exc_type}},
        heard=[],
        told=replace(TOLD, type="job.failed", state="failed", finish_reason=end.finish_reason),
    )


def test_a_job_that_failed_well_has_no_fault() -> None:
    assert failed(LATE, "DeadlineExceeded").violations() == []
    assert failed(FAILED, "GenerationError").violations() == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (lambda: evidence(STARTED, HEL, LO), "lost: job j: no final event"),
        (lambda: evidence(STARTED, HEL, LO, END, changed(END, seq=5)), "2 final events"),
        (lambda: evidence(STARTED, END, HEL, LO), "or not the last"),
        (lambda: evidence(STARTED, HEL, changed(LO, seq=4), changed(END, seq=5)), "not dense"),
        (lambda: evidence(entry_ids=["1-0", "2-0", "3-1", "4-0"]), "entry ids"),
        (lambda: evidence(STARTED, HEL, changed(LO, i=3), END), "begins with token 3, but 2"),
        (lambda: evidence(STARTED, changed(HEL, epoch=3), LO, END), "epoch goes back"),
        (lambda: evidence(TEXTS, FIRST, changed(REST, texts=(1, 0)), END), "several vectors of texts [1]"),
        (lambda: evidence(TEXTS, FIRST, END), "1 vectors of 3 texts"),
        (lambda: evidence(TEXTS, FIRST, changed(REST, texts=(2, 3)), END), "3 vectors of 3 texts"),
        (lambda: evidence(TEXTS, FIRST, REST, changed(END, n=2)), "end says 2 tokens"),
        (lambda: evidence(changed(STARTED, attempt=2), HEL, LO, END), "attempts"),
        (lambda: evidence(STARTED, HEL, LO, changed(END, n=4)), "end says 4 tokens"),
        (lambda: evidence(STARTED, HEL, changed(LO, text="la"), END), "text_sha256"),
        (lambda: evidence(record={"state": "running", "seq": "4", "n": "3", "lease": "0"}), "record is"),
        (lambda: evidence(record={}), "record is"),
        (lambda: evidence(celery={}), "Celery says None"),
        (lambda: replace(failed(LATE, "OSError"), record=evidence().record), "says FAILURE (OSError)"),
        (lambda: evidence(celery={"status": "SUCCESS", "result": {}}), "not the fold"),
        (lambda: failed(LATE, "GenerationError"), "that of deadline is DeadlineExceeded"),
        (lambda: failed(FAILED, "DeadlineExceeded"), "that of error is GenerationError"),
        (lambda: failed(FAILED, "TaskRevokedError"), "Celery's error is TaskRevokedError"),
        (lambda: evidence(told=None), "its webhook says None"),
        (lambda: evidence(told=replace(TOLD, state="failed")), "its webhook says ('j', 'failed', 'stop')"),
        (lambda: evidence(STARTED, HEL, LO), "its webhook says ('j', 'done', 'stop'), its end None"),
        (lambda: evidence(immortal_keys=["k"]), "without a lifetime"),
        (lambda: evidence(heard=[prints(changed(HEL, text="hal"))]), "that the stream does not hold"),
        (lambda: evidence(heard=[prints(STARTED, HEL, HEL, LO, END)]), "as number 3 of 5, an event again"),
        (lambda: evidence(heard=[prints(STARTED, LO, HEL, END)]), "as number 3 of 4, an event again or late"),
    ],
)
def test_a_broken_law_is_named(broken: Callable[[], Evidence], fault: str) -> None:
    assert any(fault in str(found) for found in broken().violations()), broken().violations()


def test_a_subscriber_who_comes_again_may_hear_again_what_redis_has_forgotten_meanwhile() -> None:
    assert evidence(heard=[prints(STARTED, HEL, LO), prints(HEL, LO, END)]).violations() == []


def given_up(*attempts: int, job: str = "j") -> Evidence:
    """A job that was given up after these claims, by their tokens; one of -1 ended before its start."""
    events: list[Event] = []
    n = num_starts = 0
    for claim, num_ids in enumerate(attempts, start=1):
        if num_ids >= 0:
            num_starts += 1
            events.append(changed(STARTED, seq=len(events) + 1, epoch=claim, attempt=num_starts))
        if num_ids > 0:
            ids = tuple(range(num_ids))
            events.append(changed(HEL, seq=len(events) + 1, epoch=claim, i=n, ids=ids, text=""))
            n += num_ids
    poisoned = Failure(code="poisoned", message="3 workers died", retriable=False)
    seq = len(events) + 1
    end = changed(FAILED, seq=seq, epoch=len(attempts) + 1, n=n, error=poisoned)
    return replace(
        failed(end, "GenerationError"),
        job_id=job,
        entry_ids=[f"{number}-0" for number in range(1, seq + 1)],
        events=[*events, end],
        record={"state": "failed", "seq": str(seq), "n": str(n), "lease": "0"},
        told=replace(TOLD, id=job, type="job.failed", state="failed", finish_reason="error"),
    )


@pytest.mark.parametrize(
    "attempts",
    [(0, 0, 0), (31, 31, 31), (32, 31, 0), (100, 40, 5, 31), (-1, 3, 3), (3, -1, 3)],
)
def test_a_job_may_be_given_up_that_died_with_others_too_often_before_it_came_far(
    attempts: tuple[int, ...],
) -> None:
    unlucky = given_up(*attempts)
    assert unlucky.is_blamed
    assert unlucky.violations() == []


@pytest.mark.parametrize(
    "attempts", [(), (0,), (0, 0), (0, 0, 32), (0, 32, 0), (32, 0), (100, 100, 100), (-1, -1, -1)]
)
def test_a_job_may_not_be_given_up_before_that(attempts: tuple[int, ...]) -> None:
    laws = {violation.law for violation in given_up(*attempts).violations()}
    assert laws == {"given up rightly"}


@pytest.mark.parametrize("poison", POISONS)
def test_a_job_that_kills_is_not_asked_how_it_died(poison: str) -> None:
    killer = given_up(-1, -1, -1, job=f"{poison}-1")
    assert not killer.is_blamed
    assert killer.violations() == []


@pytest.mark.redis
def test_what_is_left_over_is_named(redis: Redis) -> None:
    ledger = Ledger()
    herd = Herd(redis, ledger)
    checker = Checker(redis, ledger)
    assert checker.leftovers() == []
    herd.submit("waits")
    herd.submit("runs")
    herd.claimed("runs")
    redis.hset(ledger.unacked_key, "tag", "message")
    assert sorted(violation.detail for violation in checker.leftovers()) == [
        "herd.tales holds 2",
        "herd:default:leases holds 1",
        "herd:default:pending holds 1",
        "herd:default:pending:herd.tales holds 1",
        "herd:default:unacked holds 1",
    ]


@pytest.mark.redis
def test_an_unfinished_job_is_full_of_faults(redis: Redis) -> None:
    herd = Herd(redis, Ledger())
    herd.submit("runs")
    laws = {violation.law for violation in Checker(redis, herd.ledger).evidence("runs").violations()}
    assert laws == {"lost", "forgotten"}
