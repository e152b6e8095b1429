"""What a client is given may be anything: what is wrong with it is said by its name, and nothing is kept."""

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from redis import Redis

from llama_herd.errors import BadInput
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.herds import Herds
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.job import GenerationJob
from tests.odd_arguments import ODD, complain, is_told

pytestmark = pytest.mark.redis

#: What a call needs beside the argument that is odd.
GIVEN: dict[str, Any] = {
    name: f"no-{name}" for name in ("job_id", "name", "run_id", "worker", "model", "query")
}
GIVEN |= {"number": "1-1", "texts": ["a"], "documents": ["a"], "jobs": [], "timeout_s": 0}
GIVEN |= {"status": BatchStatus(run_id="no-run", state="done", input_name="")}
#: One job, where several are asked for: its fields are no jobs.
JOB = GenerationJob(prompt="a")
#: With these a call waits, as it should.
ENDLESS = (None, math.inf, 1e308, 1 << 70)


def public(kind: type) -> dict[str, list[str]]:
    """The arguments of each public method; those that are fields of a job have tests of their own."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: [
            one.name
            for one in inspect.signature(method).parameters.values()
            if one.kind is not one.VAR_KEYWORD and one.name != "self"
        ]
        for name, method in methods
        if not name.startswith("_")
    }


def calls(kind: type, method: str) -> Iterator[tuple[str, object, dict[str, object]]]:
    """Each argument of a method with each odd value, and the arguments of that call."""
    signature = inspect.signature(getattr(kind, method)).parameters
    needed = {one.name for one in signature.values() if one.default is one.empty} | {"timeout_s"}
    given = {name: value for name, value in GIVEN.items() if name in needed & signature.keys()}
    given |= {"job_id": f"here@{GIVEN['job_id']}"} if kind is Herds and "job_id" in given else {}
    for name in public(kind)[method]:
        given |= {"prompt": "a"} if method == "submit" and name != "job" else {}
        others = {one: value for one, value in given.items() if (one, name) != ("timeout_s", "timeout")}
        for odd in ODD:
            is_called = name == "on_progress" and callable(odd)  # what it raises is the caller's own
            if not is_called and not (name.startswith("timeout") and odd in ENDLESS):
                yield name, odd, {**others, name: odd}


@pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind in (Client, Herds) for method in public(kind)]
)
def test_a_wrong_argument_is_named_and_nothing_is_kept(
    kind: type, method: str, redis: Redis, redis_url: str
) -> None:
    wrong = []
    with Client(redis_url) as client, Herds({"here": client}, {"m": "here"}, default="here") as herds:
        for name, odd, given in calls(kind, method):
            num_keys = redis.dbsize()
            try:
                done = getattr(client if kind is Client else herds, method)(**given)
                if isinstance(done, Iterator):
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
            elif isinstance(done, AsyncIterator):
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
            if not is_told(name, error):
                wrong.append(complain(name, odd, error))
    assert wrong == []


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("method", "given"),
    [
        *(("batch", {"jobs": one}) for one in (None, 7, "text", {"prompt": "a"}, JOB)),
        *(("batch", {"jobs": [], "on_progress": one}) for one in (7, "text", [print])),
        *(("report_batch", {"status": one}) for one in (None, {"run_id": "r"}, JOB)),
        *(("submit_many", {"jobs": one}) for one in (None, 7, "text", {"prompt": "a"}, JOB)),
    ],
)
def test_what_is_of_another_kind_is_refused_by_its_name(
    kind: type, method: str, given: dict[str, Any], redis_url: str
) -> None:
    async def call() -> None:
        done = getattr(kind(redis_url), method)(**given)
        if inspect.isasyncgen(done):
            await anext(done)
        elif isinstance(done, Iterator):
            next(done)
        else:
            await done

    with pytest.raises(BadInput, match=f"^{[*given][-1]}: must be .*, got "):
        asyncio.run(call())
