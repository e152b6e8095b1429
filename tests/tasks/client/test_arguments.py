"""What a client is given may be anything: what is wrong with it is said by its name, and nothing is kept."""

import asyncio
import inspect
import math
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from redis import Redis

from llama_herd.errors import BadInput, HerdError, JobNotFound, RedisUnavailable, WorkerNotFound
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.client.client import Client

pytestmark = pytest.mark.redis

#: A number that Python does not write, text that UTF-8 has no bytes for, and values of all other kinds.
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 70, 10**5000, -0.5, math.nan, math.inf, 1e308, 1j),
    *("", "a b", "nan", "\0", "\udcff", "x" * 10_000, b"x", [], [None], {}, {"a": 1}, object(), int),
)
#: What a call needs beside the argument that is odd.
GIVEN: dict[str, Any] = {
    name: f"no-{name}" for name in ("job_id", "name", "run_id", "worker", "model", "query")
}
GIVEN |= {"number": "1-1", "texts": ["a"], "documents": ["a"], "jobs": [], "timeout_s": 0}
#: Python itself says what is wrong with these: they are not checked, but called, or read as they come.
USED = ("on_progress", "status", "jobs", "job")
#: With these a call waits, as it should.
ENDLESS = (None, math.inf, 1e308, 1 << 70)


def public(kind: type) -> dict[str, list[str]]:
    """The arguments of each public method; those that are fields of a job have tests of their own."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: [
            one.name
            for one in inspect.signature(method).parameters.values()
            if one.kind is not one.VAR_KEYWORD and one.name not in ("self", *USED)
        ]
        for name, method in methods
        if not name.startswith("_")
    }


def calls(kind: type, method: str) -> Iterator[tuple[str, object, dict[str, object]]]:
    """Each argument of a method with each odd value, and the arguments of that call."""
    signature = inspect.signature(getattr(kind, method)).parameters
    needed = {one.name for one in signature.values() if one.default is one.empty} | {"timeout_s"}
    given = {name: value for name, value in GIVEN.items() if name in needed & signature.keys()}
    given |= {"prompt": "a"} if method == "submit" else {}
    for name in public(kind)[method]:
        others = {one: value for one, value in given.items() if (one, name) != ("timeout_s", "timeout")}
        for odd in ODD:
            if not (name.startswith("timeout") and odd in ENDLESS):
                yield name, odd, {**others, name: odd}


def is_told(name: str, error: Exception) -> bool:
    """Whether the error is one of ours, or Python's for a wrong type, that names the argument."""
    is_found_out = isinstance(error, JobNotFound | WorkerNotFound | TimeoutError)  # only Redis knows
    names = (name, "job_id") if name == "name" else (name,)
    is_kind = isinstance(error, HerdError | TypeError) and not isinstance(error, RedisUnavailable)
    return is_found_out or (is_kind and any(one in str(error) for one in names) and len(str(error)) < 2500)


def complain(name: str, odd: object, error: Exception) -> str:
    return f"{name}={ascii(odd)[:40] if type(odd) is not int else 'an int'}: {error!r}"[:300]


@pytest.mark.parametrize("method", public(Client))
def test_a_wrong_argument_is_named_and_nothing_is_kept(method: str, redis: Redis, redis_url: str) -> None:
    wrong = []
    with Client(redis_url) as client:
        for name, odd, given in calls(Client, method):
            num_keys = redis.dbsize()
            try:
                done = getattr(client, method)(**given)
                if inspect.isgenerator(done):
                    next(done, None)
                redis.flushdb()
            except Exception as error:
                is_kept = isinstance(error, BadInput | TypeError) and redis.dbsize() != num_keys
                if is_kept or not is_told(name, error):
                    wrong.append(complain(name, odd, error))
    assert wrong == []


async def odd_calls(client: AsyncClient, method: str) -> list[str]:
    """What is wrong with the errors of all odd calls of a method."""
    wrong = []
    for name, odd, given in calls(AsyncClient, method):
        try:
            done = getattr(client, method)(**given)
            if inspect.iscoroutine(done):
                await done
            elif inspect.isasyncgen(done):
                async with aclosing(done):
                    await anext(done, None)
        except Exception as error:
            if not is_told(name, error):
                wrong.append(complain(name, odd, error))
    await client.close()
    return wrong


@pytest.mark.parametrize("method", public(AsyncClient))
def test_asyncio_says_the_same(method: str, redis_url: str) -> None:
    assert asyncio.run(odd_calls(AsyncClient(redis_url), method)) == []


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    assert public(Client) == public(AsyncClient)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("name", ["redis_url", "tenant", "model", "settings", "max_queue"])
def test_a_client_is_not_made_of_what_cannot_be(kind: type, name: str) -> None:
    wrong = []
    for odd in ODD:
        try:
            kind(**{name: odd})
        except Exception as error:
            if not is_told("model_name" if name == "model" else name, error):
                wrong.append(complain(name, odd, error))
    assert wrong == []
