"""What Celery stores of a job is what its stream says, and nothing once the job is purged."""

from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import trace_task_ret
from celery.backends.redis import RedisBackend
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from llama_herd.tasks.app import make_app
from llama_herd.tasks.client import Client
from llama_herd.tasks.events import End, FinishReason
from llama_herd.tasks.generate import OUTCOME
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.message import TASK_NAME
from llama_herd.tasks.result import Result
from llama_herd.tasks.settings import Settings
from llama_herd.worker.boot import insist_on_results
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.finisher import Finisher
from tests.tasks.herd import Herd, end, started

pytestmark = pytest.mark.redis


@pytest.fixture
def app(redis_url: str) -> Celery:
    return make_app(Settings(redis_url=redis_url))


@pytest.fixture
def backend(app: Celery) -> RedisBackend:
    return app.backend


@pytest.fixture
def herd(redis: Redis) -> Herd:
    return Herd(redis, Ledger())


@pytest.fixture
def finisher(redis: Redis, app: Celery) -> Iterator[Finisher]:
    finisher = Finisher(redis, Ledger(), app)
    yield finisher
    finisher.stop()


def ended(herd: Herd, job_id: str, finish_reason: FinishReason) -> None:
    herd.submit(job_id)
    herd.claimed(job_id)
    last = end(job_id, 2, 0, finish_reason=finish_reason)
    assert herd.kinds("one", started(job_id), last) == ["ok", "ok"]


@pytest.mark.parametrize(
    ("finish_reason", "state"), [("length", "SUCCESS"), ("deadline", "FAILURE"), ("cancelled", "REVOKED")]
)
def test_a_revoke_that_comes_too_late_does_not_change_what_came_of_the_job(
    herd: Herd, finisher: Finisher, backend: RedisBackend, finish_reason: FinishReason, state: str
) -> None:
    ended(herd, "late", finish_reason)
    backend.mark_as_revoked("late", "terminated")
    finisher.settle("late", [])
    finisher.stop()
    assert backend.get_state("late") == state


def test_a_result_that_celery_was_not_to_keep_is_not_kept(
    herd: Herd, finisher: Finisher, backend: RedisBackend
) -> None:
    ended(herd, "late", "length")
    finisher.settle("late", [])
    finisher.stop()
    assert not herd.redis.exists(herd.ledger.result_key("late"))


def test_a_result_that_redis_has_no_room_for_is_offered_until_it_has(redis_url: str, redis: Redis) -> None:
    app = make_app(Settings(redis_url=redis_url))
    insist_on_results(app.conf)
    storing = Thread(target=app.backend.store_result, args=("job", {"text": "a tale"}, "SUCCESS"))
    redis.config_set("maxmemory", 1)
    try:
        storing.start()
        wait_until(lambda: "errorstat_OOM" in redis.info("errorstats"), "a result refused")
    finally:
        redis.config_set("maxmemory", 0)
    storing.join()
    assert app.backend.get_state("job") == "SUCCESS"


#: Refusals after which Celery by itself would have given a link up.
MANY = 20


def num_refused(redis: Any) -> int:
    """Commands that Redis had no room for."""
    return int(redis.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])


def test_a_redis_that_goes_before_a_result_is_stored_makes_no_failure_of_it(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery looks first whether there is a result already."""
    insist_on_results(app.conf)
    away = iter([RedisConnectionError("gone")])

    def look(self: RedisBackend, key: str) -> Any:
        for error in away:
            raise error
        return self.client.get(key)

    monkeypatch.setattr(RedisBackend, "get", look)
    outcome = Result.from_events([End(seq=1, job="job", epoch=1, finish_reason="length", n=0, attempts=1)])
    request = {"id": "job", OUTCOME: outcome, "delivery_info": {}}
    trace_task_ret(TASK_NAME, "job", request, ((), {}, {}), None, None, app=app)
    assert app.backend.get_state("job") == "SUCCESS"


def test_a_link_that_redis_has_no_room_for_is_offered_until_it_has(redis_url: str, redis: Redis) -> None:
    app = make_app(Settings(redis_url=redis_url))
    insist_on_results(app.conf)
    outcome = Result.from_events([End(seq=1, job="job", epoch=1, finish_reason="length", n=0, attempts=1)])
    body: Any = ((), {}, {"callbacks": [app.signature("then", queue="next")]})
    request = {"id": "job", OUTCOME: outcome, "delivery_info": {}}
    tracing = Thread(
        target=trace_task_ret, args=(TASK_NAME, "job", request, body, None, None), kwargs={"app": app}
    )
    redis.config_resetstat()
    redis.config_set("maxmemory", 1)
    try:
        tracing.start()
        wait_until(lambda: num_refused(redis) > MANY, "a link refused again and again")
    finally:
        redis.config_set("maxmemory", 0)
    tracing.join()
    assert app.backend.get_state("job") == "SUCCESS"
    assert redis.llen("next") == 1


class PurgedMeanwhile(Delivery):
    """Its job is purged when its result has been read, and is not stored yet."""

    def __init__(self, client: Client, backend: RedisBackend) -> None:
        self._client, self._backend = client, backend
        self.is_stored = Event()

    def settle(self, outcome: Result) -> None:
        self._client.purge(outcome.job)
        self._backend.store_result(outcome.job, outcome.model_dump(mode="json"), "SUCCESS")
        self.is_stored.set()


def test_a_result_that_is_stored_in_the_instant_of_a_purge_is_forgotten(
    herd: Herd, finisher: Finisher, backend: RedisBackend, redis_url: str
) -> None:
    ended(herd, "purged", "length")
    with Client(redis_url) as client:
        delivery = PurgedMeanwhile(client, backend)
        finisher.settle("purged", [delivery])
        finisher.stop()
    assert delivery.is_stored.is_set()
    assert not herd.redis.exists(herd.ledger.result_key("purged"))
