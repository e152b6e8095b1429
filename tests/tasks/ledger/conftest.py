"""Jobs of tests of the ledger."""

from collections.abc import Iterator
from functools import cache, partial
from hashlib import sha1
from typing import Any

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.script import Script
from tests.tasks.herd import Herd, started, token
from tests.tasks.ledger.watched_scripts import NOTES, watched, writes_of


@pytest.fixture
def running(herd: Herd) -> Herd:
    """Job `a`, owned by worker one, with a start and two tokens recorded."""
    herd.submit("a")
    herd.claim("a", "one")
    assert herd.kinds("one", started("a"), token("a", 2, 0, 5, 6)) == ["ok", "ok"]
    return herd


@pytest.fixture(scope="session")
def writes(redis_server: EmbeddedRedis) -> str:
    with Redis.from_url(redis_server.url) as redis:
        return writes_of(redis)


@cache
def _sha(script: Script, writes: str) -> str:
    return sha1(watched(script, writes).encode()).hexdigest()


@pytest.fixture(autouse=True)
def undeclared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is tested here: no script touches a key that its call has not declared, unless it says so.

    And a full Redis refuses none but those that it may refuse.
    """
    if "redis" not in request.fixturenames:
        yield
        return
    redis: Any = request.getfixturevalue("redis")
    writes: str = request.getfixturevalue("writes")
    monkeypatch.setattr(Script, "source", property(partial(watched, writes=writes)))
    monkeypatch.setattr(Script, "sha", property(partial(_sha, writes=writes)))
    yield
    assert redis.type(NOTES) == b"none" or redis.smembers(NOTES) == set()
