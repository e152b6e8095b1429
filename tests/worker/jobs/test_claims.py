"""The jobs in hand: an attempt is closed once, and by itself, whatever other threads do meanwhile."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, cast

import pytest

from llama_herd.tasks.ledger.answers import Yours
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.tenancy import ClaimedJobs


def attempt(job_id: str = "job", epoch: int = 1) -> Attempt:
    claim = Yours(epoch=epoch, n=0, seq=0, deaths=0, attempts=0, due_ms=0, body="", now_ms=0)
    return Attempt(EventLog(job_id, claim, RecordedOutputs.from_events([]), EventAuthor("w", "m")), [])


class Message:
    """As much of a delivery as says whose it is."""

    def __init__(self, job_id: str = "job") -> None:
        self.job_id = job_id
        self.is_let_go = False

    def let_go(self) -> None:
        self.is_let_go = True


def adopt(claims: ClaimedJobs, message: Message) -> bool:
    return claims.adopt(cast(Any, message))


def test_who_closes_an_earlier_attempt_leaves_the_one_in_its_place() -> None:
    claims, earlier, later, message = ClaimedJobs(), attempt(epoch=1), attempt(epoch=2), Message()
    claims.begin(earlier)
    adopt(claims, message)
    claims.begin(later)
    assert earlier.is_over
    assert message.is_let_go
    assert not claims.end(earlier)
    assert claims.in_hand() == [later]
    assert not later.is_over
    assert claims.end(later)
    assert not claims


def test_a_message_goes_to_the_attempt_in_hand_and_to_none_that_is_closed() -> None:
    claims, running = ClaimedJobs(), attempt()
    assert not adopt(claims, Message())
    claims.begin(running)
    assert adopt(claims, Message())
    assert not adopt(claims, Message("other"))
    claims.end(running)
    assert not adopt(claims, Message())
    assert len(running.deliveries) == 1


@pytest.mark.long
@pytest.mark.usefixtures("restless")
def test_each_attempt_is_closed_once_whoever_opens_and_closes() -> None:
    closed: list[Attempt] = []
    claims = ClaimedJobs(closed.append)
    attempts = [attempt(f"job-{number % 7}", epoch=number) for number in range(2_000)]

    def look(_: Attempt) -> None:
        assert len(claims.in_hand()) <= 7

    with ThreadPoolExecutor(6) as threads:
        for act in (claims.begin, claims.end, look):
            for opened in attempts:
                threads.submit(act, opened).add_done_callback(lambda done: done.result())
    closed += claims.in_hand()
    assert sorted(map(id, closed)) == sorted(map(id, attempts))


def test_another_attempt_comes_only_once_the_ended_one_is_dropped() -> None:
    """Else the engine would have two of one name, and the step of all breaks off."""
    earlier, later = attempt(epoch=1), attempt(epoch=2)
    come_too_early: list[set[Future[Any]]] = []

    def drop(_: Attempt) -> None:
        come_too_early.append(wait([other.submit(claims.begin, later)], timeout=0.1).done)

    with ThreadPoolExecutor(1) as other:
        claims = ClaimedJobs(drop)
        claims.begin(earlier)
        claims.end(earlier)
    assert come_too_early == [set()]
    assert claims.in_hand() == [later]


@pytest.mark.long
@pytest.mark.usefixtures("restless")
def test_a_message_that_was_adopted_is_there_for_who_closes() -> None:
    """No message is left behind with an attempt whose messages were settled already."""
    for _ in range(300):
        claims, running, message = ClaimedJobs(), attempt(), Message()
        claims.begin(running)
        with ThreadPoolExecutor(1) as other:
            closing = other.submit(_settled, claims, running)
            is_adopted = adopt(claims, message)
        assert (message in closing.result()) is is_adopted


def _settled(claims: ClaimedJobs, running: Attempt) -> list[Any]:
    """The messages that who closes an attempt settles."""
    return list(running.deliveries) if claims.end(running) else []
