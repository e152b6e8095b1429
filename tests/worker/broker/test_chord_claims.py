"""A chord's body starts once, however often the end of a part is told, by whom and when."""

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.backends.redis import RedisBackend
from celery.result import GroupResult
from redis import Redis

from llama_herd.worker.broker.result_server import ResultsAway
from tests.worker.jobs.celery_app import app_of_worker

pytestmark = pytest.mark.redis

claims = pytest.mark.skipif(
    not hasattr(RedisBackend, "_chord_cleanup_script"),
    reason="Celery before 5.7 claims no chord: a part that is told again at its very end may start it twice",
)


@pytest.fixture
def app(redis_url: str) -> Celery:
    return app_of_worker(redis_url)


def tell(app: Celery, part: str, place: int, state: str = "SUCCESS") -> None:
    """Tell the end of a part of the chord g, whose body is a task of the queue `then`."""
    body = app.signature("shop.then", queue="then", task_id="body")
    request: Any = SimpleNamespace(id=part, group="g", group_index=place, chord=body, errbacks=None)
    result = f"a tale of {part}" if state == "SUCCESS" else ValueError(part)
    app.backend.on_chord_part_return(request, state, result)


def bodies(redis: Redis) -> list[Any]:
    """The arguments with which the body was sent."""
    messages: Any = redis.lrange("then", 0, -1)
    return [message["headers"]["argsrepr"] for message in map(json.loads, messages)]


def test_the_body_starts_once_though_each_part_is_told_often(app: Celery, redis: Redis) -> None:
    app.backend.set_chord_size("g", 2)
    for part, place in [("a", 0), ("a", 0), ("b", 1), ("a", 0), ("b", 1)]:
        tell(app, part, place)
    assert len(bodies(redis)) == 1
    assert "a tale of a" in bodies(redis)[0]
    assert "a tale of b" in bodies(redis)[0]


def test_the_body_starts_in_a_redis_that_is_full(app: Celery, redis: Redis) -> None:
    app.backend.set_chord_size("g", 2)
    redis.config_set("maxmemory", 1)
    try:
        tell(app, "a", 0)
        tell(app, "b", 1)
    finally:
        redis.config_set("maxmemory", 0)
    assert len(bodies(redis)) == 1


class Killed(BaseException):
    """Ends a worker between two of its calls."""


@claims
@pytest.mark.parametrize("place", ["_chord_claim_extend_script", "_chord_cleanup_script"])
def test_who_dies_with_the_claim_is_followed_by_who_tells_the_same_part(
    app: Celery, redis: Redis, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """At once, and not when the claim is over: before the body is sent, or when that is not noted yet."""

    def die(**_: Any) -> None:
        raise Killed

    app.backend.set_chord_size("g", 1)
    with monkeypatch.context() as patch:
        patch.setitem(vars(app.backend), place, die)
        with pytest.raises(Killed):
            tell(app, "a", 0)
    num_sent = len(bodies(redis))
    assert num_sent == (place == "_chord_cleanup_script")
    tell(app, "a", 0)
    assert len(bodies(redis)) == num_sent + 1
    tell(app, "a", 0)
    assert len(bodies(redis)) == num_sent + 1


@claims
def test_a_claim_is_no_other_parts_however_long_it_lasts(
    app: Celery, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(**_: Any) -> None:
        raise Killed

    app.backend.set_chord_size("g", 2)
    tell(app, "a", 0)
    with monkeypatch.context() as patch:
        patch.setitem(vars(app.backend), "_chord_cleanup_script", die)
        with pytest.raises(Killed):
            tell(app, "b", 1)
    tell(app, "a", 0)
    assert len(bodies(redis)) == 1
    assert redis.ttl(app.backend.get_key_for_group("g", ".c")) > 80_000


@claims
def test_of_a_chord_whose_body_was_sent_the_claim_alone_is_left(app: Celery, redis: Redis) -> None:
    app.backend.set_chord_size("g", 2)
    tell(app, "a", 0)
    tell(app, "b", 1)
    assert redis.keys("celery-taskset-meta-*") == [app.backend.get_key_for_group("g", ".c")]


@claims
def test_a_body_is_not_sent_again_if_its_redis_is_lost_right_after_that(
    app: Celery, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part counts as told: else whoever tells it again would find that it has the claim."""

    def lose(**_: Any) -> None:
        raise ResultsAway

    monkeypatch.setattr(RedisBackend, "_chord_cleanup_script", staticmethod(lose))
    app.backend.set_chord_size("g", 1)
    tell(app, "a", 0)
    assert len(bodies(redis)) == 1


def test_a_part_that_is_told_again_does_not_complete_a_chord(app: Celery, redis: Redis) -> None:
    app.backend.set_chord_size("g", 3)
    for part, place in [("a", 0), ("b", 1), ("b", 1), ("a", 0)]:
        tell(app, part, place)
    assert not bodies(redis)
    assert not redis.exists(app.backend.get_key_for_group("g", ".c"))


def test_a_failed_part_fails_the_body_once(app: Celery, redis: Redis) -> None:
    app.backend.set_chord_size("g", 2)
    for _ in range(2):
        tell(app, "a", 0, "FAILURE")
        tell(app, "b", 1)
    assert not bodies(redis)
    assert app.backend.get_state("body") == "FAILURE"
    assert "Dependency a raised" in str(app.backend.get_result("body"))


def test_a_group_among_the_parts_is_found_on_a_thread_that_has_no_app(app: Celery, redis: Redis) -> None:
    """Such as a finisher's, which settles the jobs of all tenants."""
    inner = GroupResult("inner", [app.AsyncResult("b")], app=app)
    GroupResult("g", [app.AsyncResult("a"), inner], app=app).save(app.backend)
    app.backend.set_chord_size("g", 2)
    with ThreadPoolExecutor(1) as thread:
        for place, part in enumerate("ab"):
            app.backend.store_result(part, f"a tale of {part}", "SUCCESS")
            thread.submit(tell, app, part, place).result()
    assert "['a tale of a', ['a tale of b']]" in bodies(redis)[0]
