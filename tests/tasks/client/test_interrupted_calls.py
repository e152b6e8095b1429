"""Calls of a Client that an exception of a signal's handler breaks off, as Celery's soft time limit does.

The next call of the client gets its own answer, and not what the one before has left unread.
"""

from collections.abc import Callable
from typing import Any

import pytest
from redis import Connection
from redis.client import Pipeline

from llama_herd.tasks import Client
from tests.tasks.herd import JOB, Herd

pytestmark = pytest.mark.redis


class SoftLimit(Exception):
    """What the handler raises."""


def once_interrupted(read: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but its first call is broken off: what is sent by then has an answer to come."""
    left = [SoftLimit()]

    def interrupted(*args: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return read(*args, **options)

    return interrupted


@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize(("kind", "name"), [(Pipeline, "parse_response"), (Connection, "read_response")])
def test_the_next_call_gets_its_own_answer(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, herd: Herd, kind: type, name: str, is_connected: bool
) -> None:
    def ask(job_id: str) -> str:
        return client.job(job_id).metadata["name"]

    for job_id in ("a", "b"):
        herd.submit(job_id, JOB.model_copy(update={"metadata": {"name": job_id}}))
    with Client(redis_url) as client:
        if is_connected:
            assert ask("a") == "a"
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, once_interrupted(getattr(kind, name)))
            with pytest.raises(SoftLimit):
                ask("a")
        assert [ask(one) for one in ("b", "a")] == ["b", "a"]
