"""What claimed jobs are made ready when, what else comes meanwhile, and what is noted of them."""

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import LOW, NORMAL, URGENT, urgency_of
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs import preparer
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.preparer import HEAD_START_S, LONG_S, OpenedJob
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.jobs.tenancy import Tenancy
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from tests.chaos.harness.patience import wait_until
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import JOB, the_end

pytestmark = pytest.mark.redis


def test_a_job_is_noted_as_prepared_while_it_is_and_no_longer(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for their turn in the same lot, too; what then waits for a row is not."""
    seen: list[list[Any]] = []
    sequences = SequenceMaker.sequences
    key = Ledger().job_key("job")

    def look(*args: Any) -> Any:
        seen.append(redis.hmget(key, "epoch", "preparing", "computing"))
        return sequences(*args)

    monkeypatch.setattr(SequenceMaker, "sequences", look)
    run_call(redis, Ledger().submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    service.take(SentMessage("job"))
    the_end(redis, "job")
    assert seen == [[b"1", b"1", None]]
    wait_until(lambda: redis.hget(key, "preparing") == b"", "the note that it is prepared")
    assert redis.hget(key, "computing") == b"1"


def test_every_output_of_a_job_is_computed_however_slowly_they_come_to_the_engine(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of a job is confirmed once, maybe before the next call to the engine."""
    submit = EngineThread.submit

    def submit_and_wait(engine: EngineThread, *sequences: Sequence) -> None:
        submit(engine, *sequences)
        wait_until(lambda: int(redis.hget(Ledger().job_key("job"), "n") or 0) > 0, "a token is on record")

    monkeypatch.setattr(EngineThread, "submit", submit_and_wait)
    job = GenerationJob(prompt="a tale", sampling=SamplingParams(n=3, max_tokens=4, ignore_eos=True))
    run_call(redis, Ledger().submit("job", job, Envelope.for_job("job", "herd.tiny")))
    service.take(SentMessage("job"))
    the_end(redis, "job")
    assert redis.hget(Ledger().job_key("job"), "n") == b"12"


class Preparations:
    """Holds the making of jobs up, one after the other, and lets them pass when they may."""

    def __init__(self, redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.noted: list[set[str]] = []
        self.num_in_hand: list[int] = []
        self._redis = redis
        self.service = service
        self._job_ids: list[str] = []
        self._passes = threading.Semaphore(0)
        sequences = SequenceMaker.sequences

        def held_up(maker: SequenceMaker, job_id: str, *args: Any) -> Any:
            self.noted.append(self.noted_now())
            self.num_in_hand.append(len(self.tenancy.claims.in_hand()))
            self.begun.append(job_id)
            self._passes.acquire()
            return sequences(maker, job_id, *args)

        monkeypatch.setattr(SequenceMaker, "sequences", held_up)

    @property
    def tenancy(self) -> Tenancy:
        return self.service.tenancies["default"]

    def take(self, *job_ids: str, **fields: object) -> None:
        self._job_ids += job_ids
        job = GenerationJob.model_validate({**JOB.model_dump(exclude_unset=True), **fields})
        for job_id in job_ids:
            run_call(self._redis, Ledger().submit(job_id, job, Envelope.for_job(job_id, "herd.tiny")))
        for job_id in job_ids:
            self.service.take(SentMessage(job_id))

    def take_lot(self, *job_ids: str) -> None:
        """Jobs that are noted together, since they come while one is made ready; the first is then, too."""
        self.take("plug")
        self.wait_for("plug")
        self.take(*job_ids)
        self.pass_one()
        self.wait_for(job_ids[0])

    def wait_for(self, job_id: str) -> None:
        wait_until(lambda: job_id in self.begun, f"the turn of {job_id}")

    def pass_one(self) -> None:
        self._passes.release()

    def pass_all(self) -> None:
        self._passes.release(1_000)

    def noted_now(self) -> set[str]:
        return {one for one in self._job_ids if self._redis.hget(Ledger().job_key(one), "preparing")}


@pytest.fixture
def preparations(redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Preparations]:
    preparations = Preparations(redis, service, monkeypatch)
    yield preparations
    preparations.pass_all()


def test_an_urgent_job_goes_before_the_rest_of_a_lot_and_one_that_can_wait_after_it(
    redis: Redis, preparations: Preparations
) -> None:
    preparations.take_lot("a", "b", "c")
    preparations.take("patient", priority=-1)
    preparations.take("late")
    preparations.take("urgent", "too", priority=2)
    preparations.pass_all()
    the_end(redis, "patient")
    assert preparations.begun == ["plug", "a", "urgent", "too", "b", "c", "late", "patient"]


def test_a_form_that_takes_long_lets_jobs_without_one_go_before_the_next(
    redis: Redis, preparations: Preparations
) -> None:
    """Else a few dozen forms that take a second each would hold up everybody, one after the other."""
    preparations.take("plug", "form", "too", structured_outputs={"choice": ["a"]})
    preparations.wait_for("plug")
    long_since_s = monotonic() + 2 * LONG_S
    preparations.take("plain")
    wait_until(lambda: monotonic() > long_since_s, "that takes long")
    preparations.pass_all()
    the_end(redis, "too")
    assert preparations.begun == ["plug", "plain", "form", "too"]


def test_what_waits_for_an_urgent_job_is_not_noted_meanwhile(
    redis: Redis, preparations: Preparations
) -> None:
    """A death would count against it, however many pass it."""
    preparations.take_lot("a", "b", "c")
    preparations.take("urgent", priority=2)
    preparations.pass_all()
    the_end(redis, "c")
    assert preparations.begun == ["plug", "a", "urgent", "b", "c"]
    assert preparations.noted == [{"plug"}, {"a", "b", "c"}, {"urgent"}, {"b", "c"}, {"b", "c"}]


def test_what_was_noted_by_a_call_whose_reply_was_lost_is_not_noted_while_it_waits(
    redis: Redis, preparations: Preparations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An urgent job comes before the worker asks again."""

    def lose_reply(connection: Redis, calls: Any) -> Any:
        answers = run_calls(connection, calls)
        if preparations.noted_now() == {"a", "b"}:
            monkeypatch.setattr(preparer, "run_calls", run_calls)
            preparations.take("urgent", priority=2)
            raise ConnectionError
        return answers

    monkeypatch.setattr(preparer, "run_calls", lose_reply)
    preparations.take("plug")
    preparations.wait_for("plug")
    preparations.take("a", "b")
    preparations.pass_all()
    the_end(redis, "b")
    assert preparations.noted == [{"plug"}, {"urgent"}, {"a", "b"}, {"a", "b"}]


@pytest.mark.long
def test_few_are_noted_at_a_time_however_many_have_come(redis: Redis, preparations: Preparations) -> None:
    job_ids = [str(number) for number in range(40)]
    preparations.take_lot(*job_ids)
    preparations.pass_all()
    the_end(redis, job_ids[-1])
    assert preparations.begun == ["plug", *job_ids]
    assert {len(noted) for noted in preparations.noted[1:33]} == {16}


@pytest.mark.long
def test_all_that_has_come_is_claimed_while_few_are_made_ready(
    redis: Redis, preparations: Preparations
) -> None:
    job_ids = [str(number) for number in range(60)]
    preparations.take_lot(*job_ids)
    preparations.pass_all()
    the_end(redis, job_ids[-1])
    assert preparations.num_in_hand[3] > 50


def test_a_job_of_a_lot_that_is_cancelled_is_not_made_ready(redis: Redis, preparations: Preparations) -> None:
    preparations.take_lot("a", "b", "c")
    attempt = preparations.tenancy.claims.get("b")
    assert attempt is not None
    run_call(redis, Ledger().cancel("b"))
    wait_until(lambda: attempt.abort, "the worker hears of it")
    preparations.pass_all()
    assert the_end(redis, "c").finish_reason == "length"
    assert the_end(redis, "b").finish_reason == "cancelled"
    assert preparations.begun == ["plug", "a", "c"]


def test_a_worker_that_stops_makes_nothing_more_ready_and_leaves_nothing_noted(
    redis: Redis, preparations: Preparations
) -> None:
    preparations.take_lot("a", "b", "c")
    stop = threading.Thread(target=preparations.service._intake.stop)
    stop.start()
    wait_until(lambda: preparations.service._intake._is_stopping, "it stops")
    preparations.pass_all()
    stop.join()
    assert preparations.begun == ["plug", "a"]
    assert not preparations.noted_now()


def test_an_urgent_job_passes_those_that_have_not_waited_long() -> None:
    """So whoever floods a worker with urgent jobs keeps nobody from his turn."""

    def opened(lane: str, claimed_s: float, *, is_last: bool = False) -> OpenedJob:
        claim = Yours(1, 0, 0, deaths=int(is_last), attempts=0, due_ms=0, body="", now_ms=0, lane=lane)
        stream = EventLog("job", claim, RecordedOutputs.from_events([]), EventAuthor("w", "m"))
        attempt = Attempt(stream, [], claimed_s=claimed_s, is_last=is_last, urgency=urgency_of(lane))
        return OpenedJob(attempt, claim, RecordedOutputs.from_events([]))

    jobs = [
        opened(NORMAL, 100.0),
        opened(URGENT, 100.0 + HEAD_START_S - 1),
        opened(URGENT, 100.0 + HEAD_START_S + 1),
        opened(LOW, 95.0),
        opened(URGENT, 0.0, is_last=True),
    ]
    assert sorted(jobs, key=lambda one: one.turn) == [jobs[1], jobs[0], jobs[2], jobs[3], jobs[4]]
