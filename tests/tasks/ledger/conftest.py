"""Jobs of tests of the ledger."""

from collections.abc import Iterator
from functools import cache
from hashlib import sha1
from typing import Any

import pytest

from llama_herd.tasks.ledger.script import Script
from tests.tasks.herd import Herd, started, token
from tests.tasks.ledger.watched_scripts import NOTES, watched


@pytest.fixture
def running(herd: Herd) -> Herd:
    """Job `a`, owned by worker one, with a start and two tokens recorded."""
    herd.submit("a")
    herd.claim("a", "one")
    assert herd.kinds("one", started("a"), token("a", 2, 0, 5, 6)) == ["ok", "ok"]
    return herd


@cache
def _source(script: Script) -> str:
    return script.plain_source if script.head.builds_keys else watched(script)


@cache
def _sha(script: Script) -> str:
    return sha1(_source(script).encode()).hexdigest()


@pytest.fixture(autouse=True)
def undeclared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is tested here: no script touches a key that its call has not declared, unless it says so."""
    if "redis" not in request.fixturenames:
        yield
        return
    redis: Any = request.getfixturevalue("redis")

    monkeypatch.setattr(Script, "source", property(_source))
    monkeypatch.setattr(Script, "sha", property(_sha))
    yield
    assert redis.type(NOTES) == b"none" or redis.smembers(NOTES) == set()
