"""Many jobs in few round trips: each is accepted or refused by itself, by both clients alike."""

import asyncio
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest
from redis import Redis, __version__ as redis_py

from llama_herd.errors import BadInput, InvalidJob, JobConflict, QueueFull, RedisUnavailable, UnservedModel
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import AsyncClient, Client, GenerationJob, SubmitOutcome
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.lots import MAX_CALL_JOBS, MAX_LOT_BYTES, Lots, PreparedJob, cut_into_lots
from llama_herd.tasks.client.submission import Beside, new_job
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_calls
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.proxy import FaultProxy
from tests.tasks.herd import QUEUE

pytestmark = pytest.mark.redis

SubmitMany = Callable[..., list[SubmitOutcome]]


def by_client(url: str, jobs: Iterable[Any], **options: Any) -> list[SubmitOutcome]:
    lot = {"lot": options.pop("lot")} if "lot" in options else {}
    with Client(url, **options) as client:
        return list(client.submit_many(jobs, **lot))


def by_async_client(url: str, jobs: Iterable[Any], **options: Any) -> list[SubmitOutcome]:
    lot = {"lot": options.pop("lot")} if "lot" in options else {}

    async def submit() -> list[SubmitOutcome]:
        async with AsyncClient(url, **options) as client:
            return [outcome async for outcome in client.submit_many(jobs, **lot)]

    return asyncio.run(submit())


@pytest.fixture(params=[by_client, by_async_client])
def submit_many(request: pytest.FixtureRequest) -> SubmitMany:
    many: SubmitMany = request.param
    return many


def prompts(num: int) -> list[dict[str, Any]]:
    return [{"prompt": f"tale {number}", "job_id": f"job-{number}"} for number in range(num)]


def test_each_job_has_its_own_outcome_in_order(submit_many: SubmitMany, redis_url: str) -> None:
    with Client(redis_url) as client:
        client.submit(prompt="x", job_id="taken")
    jobs = [
        {"prompt": "x"},
        {"promt": "x"},
        {"prompt": "y", "job_id": "taken"},
        {"prompt": "x", "job_id": "taken"},
        GenerationJob(prompt="x"),
        {"prompt": "x", "idempotency_key": "order-7"},
        {"job": GenerationJob(prompt="z"), "job_id": "named"},
        {"prompt": "x", "job_id": "one-too-many"},
    ]
    outcomes = submit_many(redis_url, jobs, max_queue=5)
    kinds = [type(outcome.error) for outcome in outcomes]
    nothing = type(None)
    assert kinds == [nothing, InvalidJob, JobConflict, *[nothing] * 4, QueueFull]
    assert [outcomes[place].job_id for place in (1, 2, 3, 6, 7)] == [
        "",
        "taken",
        "taken",
        "named",
        "one-too-many",
    ]
    assert isinstance(outcomes[7].error, QueueFull)
    assert (outcomes[7].error.depth, outcomes[7].error.limit) == (5, 5)
    with Client(redis_url) as client:
        assert client.submit(prompt="x", idempotency_key="order-7") == outcomes[5].job_id
        assert client.submit(GenerationJob(prompt="z"), job_id="named") == "named"
        assert client.history(outcomes[4].job_id).body["prompt"] == "x"


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"prompt": "x", "job_id": "a", "idempotency_key": "b"}, "job_id"),
        ({"prompt": "x", "job": GenerationJob(prompt="x")}, "job"),
        ({"prompt": "x", "job_id": "a b"}, "job_id"),
        ({"prompt": "x", "job_id": 7}, "job_id"),
        ({"prompt": "x", "idempotency_key": 7}, "idempotency_key"),
        ({"prompt": "x", "traceparent": 7}, "traceparent"),
        ({"prompt": "x", "deadline_ms": 7}, "deadline_ms"),
        (7, "job"),
    ],
)
def test_what_is_wrong_with_a_job_is_named_and_stops_no_other(redis_url: str, job: Any, field: str) -> None:
    wrong, right = by_client(redis_url, [job, {"prompt": "x"}])
    assert isinstance(wrong.error, InvalidJob)
    assert wrong.error.fields[0].field == field
    assert right.error is None


@pytest.mark.parametrize(
    ("command", "quoted", "kind"),
    [
        (("SADD", f"{QUEUE}\x06\x163", "x"), rf"{QUEUE}\x06\x163", "set"),
        (("SET", QUEUE, "x"), QUEUE, "string"),
        (("HSET", f"{QUEUE}\x06\x16low", "x", "y"), rf"{QUEUE}\x06\x16low", "hash"),
    ],
)
def test_who_submits_is_told_which_key_of_the_queue_is_no_list_and_the_fix(
    submit_many: SubmitMany, redis_url: str, redis: Redis, command: tuple[str, ...], quoted: str, kind: str
) -> None:
    redis.execute_command(*command)  # type: ignore[no-untyped-call]
    spoilt, fine = submit_many(redis_url, [{"prompt": "x"}, {"prompt": "x", "model": "other"}])
    told = (
        f"Redis at {redis_url} cannot take jobs of {QUEUE}: "
        f'its key "{quoted}" is a {kind}, not a list. Fix: delete or rename it'
    )
    assert (type(spoilt.error), str(spoilt.error)) == (RedisUnavailable, told)
    assert fine.error is None
    with Client(redis_url) as client, pytest.raises(RedisUnavailable) as caught:
        client.submit(prompt="x")
    assert str(caught.value) == told
    redis.delete(command[1])
    assert [one.error for one in submit_many(redis_url, [{"prompt": "x"}])] == [None]


def test_the_same_jobs_again_change_nothing(submit_many: SubmitMany, redis_url: str, redis: Redis) -> None:
    first = submit_many(redis_url, prompts(120), lot=50)
    assert submit_many(redis_url, prompts(120)) == first
    assert redis.llen(QUEUE) == redis.zcard("herd:default:pending") == 120


def test_a_lot_is_one_round_trip_of_a_few_calls(redis: Redis) -> None:
    lots = Lots(prompts(120), 1000, ClientCore(Settings()))
    (lot,) = lots
    dialogue = lots.submit(lot)
    calls = dialogue.send(None)
    assert len(calls) == -(-120 // MAX_CALL_JOBS)
    with pytest.raises(StopIteration) as caught:
        dialogue.send(run_calls(redis, calls))
    assert [outcome.error for outcome in caught.value.value[0]] == [None] * 120


def test_no_more_jobs_are_read_than_a_lot_holds_and_none_too_early(redis_url: str, redis: Redis) -> None:
    taken = count()
    with Client(redis_url) as client:
        outcomes = client.submit_many(({"prompt": "x"} for _ in taken), lot=3)
        assert redis.llen(QUEUE) == 0
        for _ in range(4):
            next(outcomes)
        assert redis.llen(QUEUE) == 6
        assert next(taken) == 6


@pytest.mark.parametrize("lot", [0, 1001])
def test_a_lot_that_holds_nothing_or_too_much_is_refused(redis_url: str, lot: int) -> None:
    with pytest.raises(BadInput, match=f"lot: must be 1 to 1000 jobs, got {lot}"):
        by_client(redis_url, prompts(1), lot=lot)


def test_lots_are_bounded_in_bytes_as_they_travel_and_a_longer_job_goes_alone() -> None:
    """A control character of a prompt travels as six bytes."""
    mebibyte, longer = "é" * 2**19, "\x01" * 2**20
    settings = Settings(max_prompt_bytes=2**20)
    new = [new_job({"prompt": one}, settings, Beside()) for one in ("x", *[mebibyte] * 5, longer, "x", "x")]
    posts = [PreparedJob.prepare(one, Ledger()) for one in new]
    lots = list(cut_into_lots(posts))
    assert [one for lot in lots for one in lot] == posts
    assert [len(lot) for lot in lots] == [4, 2, 1, 2]
    num_bytes = [sum(one.item.num_bytes for one in lot) for lot in lots]
    assert [size <= MAX_LOT_BYTES for size in num_bytes] == [True, True, False, True]


def test_who_names_a_model_that_nobody_serves_is_told_once_of_each(
    submit_many: SubmitMany, redis_url: str, redis: Redis
) -> None:
    redis.zadd("herd:default:served", {"herd.tales": 2**52})
    jobs = [{"prompt": "x", "model": model} for model in ("tales", "takes", "other", "takes")] * 40
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        submit_many(redis_url, jobs, lot=60)
    notes = [str(warning.message) for warning in told if warning.category is UnservedModel]
    assert [note.split(":")[0] for note in notes] == ["no worker serves takes", "no worker serves other"]


@pytest.fixture
def proxy(redis: Redis, redis_server: EmbeddedRedis) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


VERSION = tuple(map(int, re.findall(r"\d+", redis_py)[:3]))


@pytest.mark.skipif(VERSION < (7, 4), reason="redis-py before 7.4 does not repeat its own greeting")
def test_a_connection_that_is_cut_once_costs_nothing(
    submit_many: SubmitMany, proxy: FaultProxy, redis: Redis
) -> None:
    """Redis had taken the lot, and gets it again."""
    proxy.num_cuts = 1
    outcomes = submit_many(proxy.url, prompts(70))
    assert proxy.num_cuts == 0
    assert [outcome.error for outcome in outcomes] == [None] * 70
    assert redis.llen(QUEUE) == redis.zcard("herd:default:pending") == 70


@pytest.mark.skipif(VERSION < (5, 0, 2), reason="redis-py 5.0.1 repeats no pipeline, whatever it is asked")
def test_a_connection_that_is_cut_later_costs_nothing_either(proxy: FaultProxy) -> None:
    with Client(proxy.url) as client:
        client.submit(prompt="x")
        proxy.num_cuts = 1
        client.submit(prompt="y")
    assert proxy.num_cuts == 0


@pytest.mark.long
def test_a_connection_that_is_lost_leaves_each_job_known_or_safe_to_repeat(
    proxy: FaultProxy, redis: Redis
) -> None:
    """What was yielded was sent, also where Redis took it and nobody heard; what was not was not."""
    jobs, outcomes = iter(prompts(90)), []
    with Client(proxy.url) as client:
        sending = client.submit_many(jobs, lot=30)
        outcomes.append(next(sending))
        proxy.num_cuts = 10**6
        with pytest.raises(RedisUnavailable):
            outcomes.extend(sending)
    assert [outcome.job_id for outcome in outcomes] == [f"job-{number}" for number in range(60)]
    assert [type(outcome.error) for outcome in outcomes] == [type(None)] * 30 + [RedisUnavailable] * 30
    assert next(jobs) == prompts(61)[60]
    assert redis.llen(QUEUE) == 60
    proxy.num_cuts = 0
    again = by_client(proxy.url, prompts(90))
    assert [outcome.error for outcome in again] == [None] * 90
    assert redis.llen(QUEUE) == redis.zcard("herd:default:pending") == 90


@pytest.mark.long
def test_a_lost_connection_is_told_by_the_other_client_too(proxy: FaultProxy) -> None:
    outcomes = []

    async def submit() -> None:
        async with AsyncClient(proxy.url) as client:
            async for outcome in client.submit_many([{"prompt": "x"}, {"promt": "x"}]):
                outcomes.append(outcome)

    proxy.num_cuts = 10**6
    with pytest.raises(RedisUnavailable):
        asyncio.run(submit())
    assert [type(outcome.error) for outcome in outcomes] == [RedisUnavailable, InvalidJob]
    assert outcomes[0].job_id
