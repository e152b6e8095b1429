"""What Celery stores of a job is what its stream says, and nothing once the job is purged."""

import gc
from collections.abc import Iterator
from threading import Event, Thread
from time import monotonic
from typing import Any
from weakref import ref

import pytest
from celery import Celery
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import DataError, ResponseError
from structlog.testing import capture_logs

from llama_herd.errors import GenerationError
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.generate import run_tracer, store_failure
from llama_herd.tasks.ledger.answers import Settled, Settling, StreamPart
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol import events
from llama_herd.tasks.protocol.events import FinishReason
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.result_backend import ResultValue, settling
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.jobs.tenancy import Tenancy
from tests.chaos.harness.patience import wait_until
from tests.redis_errors import num_errors
from tests.tasks.herd import Herd, end, started
from tests.worker.jobs.tenancies import new_tenancy

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finisher that stops has stored its results, however slow the machine is."""
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.STOP_S", 60.0)


@pytest.fixture
def app(redis_url: str) -> Celery:
    return make_app(Settings(redis_url=redis_url))


@pytest.fixture
def herd(redis: Redis) -> Herd:
    return Herd(redis, Ledger())


@pytest.fixture
def finisher(redis: Redis, app: Celery) -> Iterator[Finisher]:
    finisher = Finisher(redis)
    yield finisher
    finisher.stop()


@pytest.fixture
def tenancy(redis: Redis, app: Celery) -> Tenancy:
    return new_tenancy(redis, app=app)


def ended(herd: Herd, job_id: str, finish_reason: FinishReason) -> None:
    herd.submit(job_id)
    herd.claimed(job_id)
    last = end(job_id, 2, 0, finish_reason=finish_reason)
    assert herd.kinds("one", started(job_id), last) == ["ok", "ok"]


class Told(Delivery):
    """Keeps what it was told, in order."""

    def __init__(self, app: Celery, job_id: str, *, ignores: bool = False) -> None:
        self._app, self._id = app, job_id
        self._args = (None, None, {"ignore_result": ignores})
        self.told: list[str] = []

    @property
    def job_id(self) -> str:
        return self._id

    def settle(
        self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
    ) -> ResultValue:
        with settling(self._id, life_s) as now:
            run_tracer(self._app.tasks[TASK_NAME], {"id": self._id, "delivery_info": {}}, None, outcome)
        return now.result

    def close(self) -> None:
        self.told.append("settled")

    def fail(self, error: GenerationError) -> None:
        store_failure(self._id, error, self._app.backend)
        self.told.append("failed")

    def acknowledge(self) -> None:
        self.told.append("acked")


def test_a_job_whose_stream_cannot_be_read_fails_before_its_message_is_acked(
    herd: Herd, finisher: Finisher, worker_app: Celery, tenancy: Tenancy
) -> None:
    ended(herd, "broken", "length")
    herd.redis.xadd(herd.ledger.events_key("broken"), {"e": "a secret"})
    delivery = Told(worker_app, "broken")
    finisher.settle(tenancy, "broken", [delivery])
    wait_until(lambda: "acked" in delivery.told, "the message is acked")
    assert delivery.told == ["failed", "acked"]
    error = worker_app.backend.get_result("broken")
    assert isinstance(error, GenerationError)
    assert error.code == "refused"
    assert "secret" not in str(error)


def test_a_job_whose_stream_is_forgotten_fails_but_what_celery_knows_stays(
    herd: Herd, finisher: Finisher, worker_app: Celery, tenancy: Tenancy
) -> None:
    worker_app.backend.store_result("known", {"text": "a tale"}, "SUCCESS")
    deliveries = {name: Told(worker_app, name) for name in ("known", "gone")}
    for name, delivery in deliveries.items():
        finisher.settle(tenancy, name, [delivery])
    wait_until(lambda: all(one.told[-1:] == ["acked"] for one in deliveries.values()), "both are acked")
    assert worker_app.backend.get_state("known") == "SUCCESS"
    assert worker_app.backend.get_state("gone") == "FAILURE"
    wait_until(lambda: (finisher.num_answered, finisher.num_waiting) == (2, 0), "the watchdog sees both end")


@pytest.mark.parametrize("is_early", [True, False])
def test_a_job_whose_id_is_another_ones_by_now_takes_nothing_from_that(
    herd: Herd, finisher: Finisher, worker_app: Celery, tenancy: Tenancy, is_early: bool
) -> None:
    """It has lived no longer than this finisher was slow: before it asked, or after that."""
    ended(herd, "again", "length")

    def begin_anew() -> None:
        herd.redis.delete(herd.ledger.job_key("again"), herd.ledger.events_key("again"))
        herd.submit("again")

    class Late(Told):
        def settle(
            self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
        ) -> ResultValue:
            begin_anew()
            return super().settle(outcome, life_s, has_sent_links=has_sent_links)

    if is_early:
        begin_anew()
    delivery = (Told if is_early else Late)(worker_app, "again")
    finisher.settle(tenancy, "again", [delivery])
    finisher.stop()
    assert delivery.told == (["acked"] if is_early else ["settled"])
    assert worker_app.backend.get_state("again") == "PENDING"
    herd.claimed("again")
    herd.emit("one", started("again"), end("again", 2, 0))
    assert run_call(herd.redis, herd.ledger.settling("again", "another", 1000)) == Settling()


def test_a_result_that_can_never_be_stored_is_acked_and_logged_without_its_text(
    herd: Herd, finisher: Finisher, worker_app: Celery, tenancy: Tenancy
) -> None:
    ended(herd, "refused", "deadline")
    herd.redis.lpush(herd.ledger.result_key("refused"), "somebody else's")
    delivery = Told(worker_app, "refused")
    with capture_logs() as lines:
        finisher.settle(tenancy, "refused", [delivery])
        wait_until(lambda: delivery.told, "the message is acked")
    assert delivery.told == ["acked"]
    errors = [line for line in lines if line["log_level"] == "error"]
    assert [line["event"] for line in errors] == [
        "job's result was not stored",
        "job's failure was not stored either",
    ]
    assert "WRONGTYPE" in errors[0]["error"]


class PurgedMeanwhile(Told):
    """Its job is purged when its result has been read, and is not stored yet."""

    client: Client

    def settle(
        self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
    ) -> ResultValue:
        self.client.purge(outcome.job)
        return super().settle(outcome, life_s, has_sent_links=has_sent_links)


class PurgedAndFailed(PurgedMeanwhile):
    """What the tracer runs raises an error."""

    def settle(
        self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
    ) -> ResultValue:
        super().settle(outcome, life_s, has_sent_links=has_sent_links)
        raise SystemExit


@pytest.mark.parametrize(
    ("kind", "finish_reason", "told"),
    [
        (PurgedMeanwhile, "length", ["settled"]),
        (PurgedMeanwhile, "deadline", ["settled"]),
        (PurgedAndFailed, "length", ["failed", "acked"]),
    ],
)
def test_nothing_is_left_of_a_result_in_the_instant_of_a_purge(
    herd: Herd,
    finisher: Finisher,
    worker_app: Celery,
    redis_url: str,
    tenancy: Tenancy,
    kind: type[PurgedMeanwhile],
    finish_reason: FinishReason,
    told: list[str],
) -> None:
    ended(herd, "purged", finish_reason)
    delivery = kind(worker_app, "purged")
    with Client(redis_url) as delivery.client:
        finisher.settle(tenancy, "purged", [delivery])
        finisher.stop()
    assert delivery.told == told
    assert not herd.redis.exists(herd.ledger.result_key("purged"))


def test_a_job_that_is_purged_before_its_stream_is_read_is_no_error(
    herd: Herd, finisher: Finisher, worker_app: Celery, redis_url: str, tenancy: Tenancy
) -> None:
    """As by a client that has read its end, and forgets it at once."""
    ended(herd, "purged", "length")

    class Late(StreamReader):
        def events(
            self, job_id: str, first: StreamPart | ResponseError | None = None, *, with_scores: bool = True
        ) -> Iterator[events.Event]:
            client.purge(job_id)
            return super().events(job_id, with_scores=with_scores)

    tenancy.reader = Late(herd.redis, herd.ledger, max_tokens=4096, max_prompt_tokens=4096)
    delivery = Told(worker_app, "purged")
    with Client(redis_url) as client, capture_logs() as lines:
        finisher.settle(tenancy, "purged", [delivery])
        finisher.stop()
    assert delivery.told == ["acked"]
    assert lines == []
    assert not herd.redis.exists(herd.ledger.result_key("purged"))


class Slow(Told):
    """Its links are sent when the test says so."""

    def __init__(self, app: Celery, job_id: str) -> None:
        super().__init__(app, job_id)
        self.has_begun, self.may_go_on = Event(), Event()

    def settle(
        self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
    ) -> ResultValue:
        self.has_begun.set()
        self.may_go_on.wait()
        return super().settle(outcome, life_s, has_sent_links=has_sent_links)


class RoundTrips(Redis):
    """Counts them."""

    num = 0

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        self.num += 1
        return super().pipeline(transaction, shard_hint)


def settle_together(finisher: Finisher, tenancy: Tenancy, first: "Slow", others: list[Told]) -> None:
    """The others wait while the first is settled; there is one thread."""
    finisher.settle(tenancy, first.job_id, [first])
    first.has_begun.wait()
    for other in others:
        finisher.settle(tenancy, other.job_id, [other])
    first.may_go_on.set()
    wait_until(lambda: all(other.told for other in others), "all are told")
    finisher.stop()


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other settles jobs, and none reports them."""
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.NUM_THREADS", 1)
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.REPORT_S", 3600)


def test_of_a_message_whose_result_is_refused_nothing_stays(
    one_thread: None, herd: Herd, redis: Redis, app: Celery, worker_app: Celery, tenancy: Tenancy
) -> None:
    """Nor a cycle: messages may be long, and the collector of garbage counts objects, not bytes."""
    finisher = Finisher(redis)
    gc.disable()
    try:
        for job_id in ("broken", "next"):
            ended(herd, job_id, "length")
        herd.redis.xadd(herd.ledger.events_key("broken"), {"e": "no event"})
        broken, following = Told(worker_app, "broken"), Told(worker_app, "next")
        left, told = ref(broken), broken.told
        finisher.settle(tenancy, "broken", [broken])
        del broken
        wait_until(lambda: "acked" in told, "the message is acked")
        finisher.settle(tenancy, "next", [following])
        wait_until(lambda: "settled" in following.told, "the thread is done with both")
        wait_until(lambda: left() is None, "nothing holds the message")
    finally:
        gc.enable()
        finisher.stop()


@pytest.mark.parametrize("num", [1, 8])
def test_jobs_that_end_together_cost_as_many_round_trips_as_one(
    herd: Herd, redis_url: str, worker_app: Celery, tenancy: Tenancy, one_thread: None, num: int
) -> None:
    for script in (herd.ledger.settling("-", "-", 1), tenancy.reader.part("-"), herd.ledger.settle("-")):
        run_call(herd.redis, script)  # it is loaded
    names = ["first", *(f"other-{number}" for number in range(num))]
    for name in names:
        ended(herd, name, "length")
    first, *others = Slow(worker_app, "first"), *(Told(worker_app, name) for name in names[1:])
    with RoundTrips.from_url(redis_url) as redis:
        settle_together(Finisher(redis), tenancy, first, others)
    assert {worker_app.backend.get_state(name) for name in names} == {"SUCCESS"}
    assert redis.num == 2 + 2


@pytest.mark.parametrize("num", [1, 8])
def test_that_jobs_are_being_settled_is_reported_in_one_round_trip(
    herd: Herd, redis_url: str, worker_app: Celery, tenancy: Tenancy, one_thread: None, num: int
) -> None:
    """One for each would take longer than a finisher may be silent, where Redis is far away."""
    jobs = [Slow(worker_app, f"job-{number}") for number in range(num + 1)]
    for job in jobs:
        ended(herd, job.job_id, "length")
    first, second, *_ = jobs
    with RoundTrips.from_url(redis_url) as redis:
        finisher = Finisher(redis)
        finisher.settle(tenancy, first.job_id, [first])
        first.has_begun.wait()
        for job in jobs[1:]:
            finisher.settle(tenancy, job.job_id, [job])
        first.may_go_on.set()
        second.has_begun.wait()
        before = redis.num
        finisher._report_settling()
        assert redis.num == before + 1
        for job in jobs:
            job.may_go_on.set()
        finisher.stop()
    assert [job.told for job in jobs] == [["settled"]] * len(jobs)


def test_jobs_that_end_together_have_no_part_in_each_others_trouble(
    herd: Herd, redis: Redis, worker_app: Celery, tenancy: Tenancy, one_thread: None
) -> None:
    names = ["first", "good", "broken", "forgotten", "spoilt", "better"]
    for name in names:
        ended(herd, name, "length")
    herd.redis.xadd(herd.ledger.events_key("broken"), {"e": "no event"})
    herd.redis.delete(herd.ledger.events_key("forgotten"), herd.ledger.job_key("spoilt"))
    herd.redis.lpush(herd.ledger.job_key("spoilt"), "somebody else's")
    first, *others = Slow(worker_app, "first"), *(Told(worker_app, name) for name in names[1:])
    settle_together(Finisher(redis), tenancy, first, others)
    assert [other.told[0] for other in others] == ["settled", "failed", "failed", "failed", "settled"]
    states = [worker_app.backend.get_state(name) for name in names]
    assert states == ["SUCCESS", "SUCCESS", "FAILURE", "FAILURE", "FAILURE", "SUCCESS"]


class Refused(Told):
    """Redis does not take its result."""

    def settle(
        self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
    ) -> ResultValue:
        result = super().settle(outcome, life_s, has_sent_links=has_sent_links)
        return result._replace(life_s=2**60)


def test_a_result_that_redis_refuses_is_no_trouble_of_the_others_beside_it(
    herd: Herd, redis: Redis, worker_app: Celery, tenancy: Tenancy, one_thread: None
) -> None:
    first = Slow(worker_app, "first")
    others = [Told(worker_app, "good"), Refused(worker_app, "refused"), Told(worker_app, "better")]
    for one in (first, *others):
        ended(herd, one.job_id, "length")
    settle_together(Finisher(redis), tenancy, first, others)
    assert [other.told for other in others] == [["settled"], ["failed", "acked"], ["settled"]]
    states = [worker_app.backend.get_state(other.job_id) for other in others]
    assert states == ["SUCCESS", "FAILURE", "SUCCESS"]


def test_results_that_redis_refuses_are_offered_until_it_takes_them(
    herd: Herd, redis: Redis, worker_app: Celery, tenancy: Tenancy, one_thread: None
) -> None:
    class LastTaken(Told):
        def settle(
            self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
        ) -> ResultValue:
            redis.config_set("min-replicas-to-write", 1)
            return super().settle(outcome, life_s, has_sent_links=has_sent_links)

    jobs = [Slow(worker_app, "first"), Told(worker_app, "second"), LastTaken(worker_app, "third")]
    for job in jobs:
        ended(herd, job.job_id, "length")
    finisher = Finisher(redis)
    redis.config_resetstat()
    try:
        settle_later = Thread(target=settle_together, args=(finisher, tenancy, jobs[0], jobs[1:]))
        settle_later.start()
        wait_until(lambda: num_errors(redis, "NOREPLICAS"), "a result refused")
        assert [job.told for job in jobs] == [["settled"], [], []]
    finally:
        redis.config_set("min-replicas-to-write", 0)
    settle_later.join()
    assert [job.told for job in jobs] == [["settled"]] * 3
    assert {worker_app.backend.get_state(job.job_id) for job in jobs} == {"SUCCESS"}


class Unusable(Redis):
    """Takes no call, for a reason that does not pass."""

    def pipeline(self, *_: Any) -> Pipeline:
        raise DataError("a fault of ours")


def test_what_ends_the_question_for_all_is_told_of_each(
    herd: Herd, redis_url: str, worker_app: Celery, tenancy: Tenancy
) -> None:
    deliveries = [Told(worker_app, name) for name in ("one", "two")]
    with Unusable.from_url(redis_url) as redis:
        finisher = Finisher(redis)
        for delivery in deliveries:
            ended(herd, delivery.job_id, "length")
            finisher.settle(tenancy, delivery.job_id, [delivery])
        wait_until(lambda: all("acked" in one.told for one in deliveries), "both are acked")
        finisher.stop()
    assert [one.told for one in deliveries] == [["failed", "acked"]] * 2


@pytest.fixture
def short_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.SETTLING_MS", 600)
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.REPORT_S", 0.1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to wait for a minute asks again within a second: its clock is fast."""
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.SETTLING_MS", 60_000)
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.REPORT_S", 0.1)
    monkeypatch.setattr("llama_herd.worker.jobs.finisher.monotonic", lambda: 100 * monotonic())


@pytest.mark.long
def test_a_message_that_comes_again_at_the_very_end_waits_for_the_first(
    herd: Herd, redis: Redis, worker_app: Celery, impatient: None, tenancy: Tenancy
) -> None:
    """To the same worker or another one, however often it asks, while the first says that it goes on."""
    ended(herd, "twice", "length")
    finishers = [Finisher(redis) for _ in range(2)]
    first = Slow(worker_app, "twice")
    others = [Told(worker_app, "twice") for _ in range(3)]
    finishers[0].settle(tenancy, "twice", [first])
    first.has_begun.wait()
    for finisher, other in zip([*finishers, finishers[1]], others, strict=True):
        finisher.settle(tenancy, "twice", [other])
    key = herd.ledger.job_key("twice")
    until = herd.redis.hget(key, "settling_until")
    wait_until(lambda: int(herd.redis.hget(key, "settling_until")) > int(until) + 1500, "it is renewed")
    assert [other.told for other in others] == [[], [], []]
    wait_until(lambda: sum(finisher.num_waiting for finisher in finishers) == 1, "only the first waits here")
    first.may_go_on.set()
    wait_until(lambda: all(other.told for other in others), "the others are acked")
    assert first.told == ["settled"]
    assert [other.told for other in others] == [["acked"]] * 3
    for finisher in finishers:
        finisher.stop()


@pytest.mark.long
def test_the_end_of_a_worker_that_died_at_the_very_end_is_told_by_another(
    herd: Herd, finisher: Finisher, worker_app: Celery, short_hold: None, tenancy: Tenancy
) -> None:
    ended(herd, "left", "length")
    run_call(herd.redis, herd.ledger.settling("left", "died", 600))
    other = Told(worker_app, "left")
    finisher.settle(tenancy, "left", [other])
    wait_until(lambda: other.told, "the other tells it")
    assert other.told == ["settled"]
    assert worker_app.backend.get_state("left") == "SUCCESS"
    wait_until(lambda: herd.claim("left") == Settled(), "the record says so")
