"""Many jobs through a window: bounded, resumable, forgotten once they are used; sync and asyncio alike."""

import asyncio
import json
from collections.abc import Sequence
from itertools import count
from time import sleep
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.errors import InvalidJob, RedisUnavailable
from llama_herd.tasks import AsyncClient, BatchItem, BatchRow, Client, GenerationJob
from llama_herd.tasks.client.batch import window
from llama_herd.tasks.client.batch.row_feed import RowFeed, RowJob
from llama_herd.tasks.client.batch.window import (
    HELD_BACK,
    LOOK_AHEAD,
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    MIN_WINDOW,
    next_pause_s,
)
from llama_herd.tasks.client.lots import MAX_CALL_JOBS, MAX_LOT_BYTES, PreparedJob, submit_lot
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.script import kept_scripts
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.job import GenerationJob as Job
from llama_herd.tasks.protocol.priority import LOW
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.security.rights import Dialect
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.patience import wait_until
from tests.tasks.herd import Herd, commands, end, started

pytestmark = pytest.mark.redis

#: Where the jobs of a batch wait, unless told otherwise.
BULK_LIST = f"herd.tales{LOW}"


def prompts(num: int) -> list[dict[str, Any]]:
    return [{"prompt": f"tale {number}"} for number in range(num)]


def test_a_row_keeps_its_model_and_one_without_gets_the_default() -> None:
    feed = RowFeed([{"prompt": "x", "model": "other"}, {"prompt": "x"}], Settings(model_name="tales"), "run")
    taken = [feed.take(), feed.take()]
    assert [isinstance(one, RowJob) and one.job.model for one in taken] == ["other", "tales"]
    assert feed.take() is None


def depth(redis: Redis) -> int:
    return run_call(redis, Ledger().queue_depth("herd.tales"))


def texts(items: Sequence[BatchItem]) -> dict[int, str]:
    return {item.index: item.result.text.split(": ")[0] for item in items if item.result}


def job_keys(redis: Redis) -> list[bytes]:
    """Records and streams that still hold something of a job."""
    keys: Any = redis.keys("herd:default:{*")
    return [key for key in keys if redis.type(key) != b"hash" or redis.hget(key, "state") != b"purged"]


def test_every_job_comes_out_once_and_redis_forgets_all_of_them(
    client: Client, redis_url: str, redis: Redis
) -> None:
    with StandIn(redis_url):
        items = list(client.batch(prompts(500)))
    assert texts(items) == {number: f"tale {number}" for number in range(500)}
    assert all(item.failure is None for item in items)
    assert job_keys(redis) == []
    assert redis.keys("celery-task-meta-*") == []


def test_a_job_that_lost_its_end_is_an_item_that_says_so(client: Client, herd: Herd) -> None:
    batch = client.batch(prompts(3), run_id="r", window=3)
    batch.poll()
    for number in range(3):
        name = f"batch-r-{number}"
        herd.claim(name)
        herd.emit("one", started(name), end(name, 2, 0))
    herd.redis.xdel(herd.ledger.events_key("batch-r-0"), "2-0")
    herd.redis.xadd(herd.ledger.events_key("batch-r-1"), {"e": "no event"}, "3-0")
    items = {item.index: item for item in batch}
    codes = [failure.code if failure else None for failure in (items[n].failure for n in range(3))]
    assert codes == ["unreadable", "unreadable", None]
    assert job_keys(herd.redis) == []


def test_a_row_whose_job_lost_all_its_events_runs_again(client: Client, redis_url: str, redis: Redis) -> None:
    batch = client.batch(prompts(1), run_id="r")
    batch.poll()
    with StandIn(redis_url) as worker:
        wait_until(lambda: client.count_jobs() == 0, "its job has ended")
        redis.delete(Ledger().events_key("batch-r-0"))
        wait_until(lambda: batch.poll() or batch.window.is_over, "it is run again")
    assert worker.answered == ["batch-r-0", "batch-r-0.2"]
    assert list(batch) == []
    assert job_keys(redis) == []


def test_redis_keeps_what_was_handed_out_until_more_is_asked_for(
    client: Client, redis_url: str, redis: Redis
) -> None:
    batch = client.batch(prompts(1))
    with StandIn(redis_url):
        next(batch)
    assert len(job_keys(redis)) == 2
    assert list(batch) == []
    assert job_keys(redis) == []


def test_long_prompts_are_submitted_a_few_at_a_time(client: Client, redis: Redis) -> None:
    long = {"prompt": "x" * 200_000}
    batch = client.batch([long] * 60, window=60)
    batch.poll()
    assert batch.window.num_under_way == MAX_LOT_BYTES // 200_000
    for _ in range(3):
        batch.poll()
    assert batch.window.num_under_way == depth(redis) == 60


def test_the_jobs_of_a_round_travel_in_lots(client: Client, redis: Redis) -> None:
    batch = client.batch(prompts(120), window=120)
    calls = commands(redis, batch.poll, by_scripts=False)
    shas = {script.sha: script.name for script in kept_scripts("producers")}
    ran = [shas.get(call.split()[1]) for call in calls if call.startswith("EVALSHA ")]
    assert ran.count("submit_many") == 2 * -(-120 // MAX_CALL_JOBS)  # once more, after it was loaded
    assert "submit" not in ran
    assert batch.window.num_under_way == depth(redis) == 120


def test_no_more_jobs_are_under_way_than_the_window_holds(client: Client, redis: Redis) -> None:
    taken = count()
    batch = client.batch(({"prompt": "x"} for _ in iter(lambda: next(taken), None)), window=7)
    assert batch.poll() == []
    assert batch.window.num_under_way == 7
    assert next(taken) == 7
    assert depth(redis) == 7


def test_jobs_that_are_not_known_yet_hold_up_no_item(client: Client, redis_url: str) -> None:
    known: list[GenerationJob | None] = [GenerationJob(prompt="first"), None]
    jobs = iter(lambda: known.pop(0) if known else None, "never")
    batch = client.batch(jobs)
    with StandIn(redis_url):
        assert [next(batch).index, batch.poll()] == [0, []]
        known.append(GenerationJob(prompt="second"))
        assert next(batch).index == 1
    assert not batch.window.is_over


def test_who_stops_asking_leaves_the_rest_until_it_is_cancelled(
    client: Client, redis_url: str, redis: Redis
) -> None:
    taken = count()
    batch = client.batch(({"prompt": "x"} for _ in taken), window=8)
    with StandIn(redis_url):
        for _ in batch:
            break
    num_taken = next(taken)
    assert num_taken <= 2 * 8
    assert job_keys(redis) != []
    batch.cancel()
    assert 1 + len(list(batch)) == num_taken
    assert job_keys(redis) == []


def test_the_window_follows_the_workers_that_are_up(client: Client, redis_url: str) -> None:
    batch = client.batch(prompts(1000))
    batch.poll()
    assert batch.window.size == MIN_WINDOW
    with StandIn(redis_url, slots=50) as worker:
        worker.hold()
        batch = client.batch(prompts(1000))
        batch.poll()
        batch.poll()
        assert batch.window.num_under_way == batch.window.size == 50 + LOOK_AHEAD


def test_in_order_means_the_order_of_the_jobs(client: Client, redis_url: str) -> None:
    def verdict(job_id: str, job: Job) -> Failure | None:
        is_odd = int(str(job.prompt).split()[1]) % 2
        return Failure(code="late", message="", retriable=True) if is_odd and "." not in job_id else None

    with StandIn(redis_url, verdict=verdict):
        items = list(client.batch(prompts(100), in_order=True))
    assert [item.index for item in items] == list(range(100))
    assert all(item.failure is None for item in items)


@pytest.mark.long
def test_a_slow_row_holds_back_no_more_than_a_few_windows(
    client: Client, redis_url: str, redis: Redis
) -> None:
    batch = client.batch(prompts(10_000), window=4, in_order=True)
    batch.poll()
    redis.rpop(BULK_LIST)  # the first job's message is lost for a while
    with StandIn(redis_url) as worker:
        while len(worker.answered) < HELD_BACK * MIN_WINDOW - 1:
            assert batch.poll() == []
        assert batch.poll() == []
        assert len(worker.answered) == HELD_BACK * MIN_WINDOW - 1


def test_a_retriable_error_is_tried_twice_more_and_another_one_not(client: Client, redis_url: str) -> None:
    failures = {
        "tale 0": Failure(code="model_error", message="the card fell off", retriable=True),
        "tale 1": Failure(code="numeric_error", message="no numbers"),
    }
    with StandIn(redis_url, verdict=lambda job_id, job: failures.get(str(job.prompt))) as worker:
        items = list(client.batch(prompts(3), run_id="r"))
    assert {item.index: item.failure for item in items} == dict(enumerate([*failures.values(), None]))
    assert sorted(worker.answered) == ["batch-r-0", "batch-r-0.2", "batch-r-0.3", "batch-r-1", "batch-r-2"]


def test_a_row_that_says_how_often_it_is_tried_again_is_one_job(client: Client, redis_url: str) -> None:
    failure = Failure(code="model_error", message="the card fell off", retriable=True)
    with StandIn(redis_url, verdict=lambda *_: failure) as worker:
        rows = [{"prompt": "x", "retries": retries} for retries in (0, 2)]
        assert [item.failure for item in client.batch(rows, run_id="r")] == [failure] * 2
    assert sorted(worker.answered) == ["batch-r-0", "batch-r-1"]


@pytest.mark.parametrize("run_id", ["nightly run", "runs/7", "{r}", "r" * 101])
def test_a_name_that_cannot_be_part_of_a_jobs_id_is_refused(client: Client, run_id: str) -> None:
    """No worker would take its messages."""
    with pytest.raises(InvalidJob, match="run_id: must be 1 to 100"):
        client.batch(prompts(1), run_id=run_id)


def test_a_row_that_is_no_job_says_why_and_stops_nothing(client: Client, redis_url: str) -> None:
    known = Failure(code="bad", message="seen by the caller")
    rows: list[Any] = [
        {"prompt": "secret", "colour": "blue"},
        GenerationJob(prompt="fine"),
        BatchRow(7, failure=known, tag="mine"),
        {"prompt": "fine", "webhook": "https://app.example.com/hook"},
    ]
    with StandIn(redis_url):
        items = {item.index: item for item in client.batch(rows)}
    assert items[0].failure == Failure(code="invalid_job", message="colour: unknown field")
    assert items[1].failure is None
    assert items[7].failure is known
    assert items[7].row.tag == "mine"
    assert items[3].failure is not None
    assert items[3].failure.message.startswith("webhook: no webhook tells of the end of a batch's row. Fix: ")


def test_jobs_of_a_batch_come_last_and_flush_seldom_unless_they_say_otherwise(
    client: Client, redis: Redis
) -> None:
    client.batch([{"prompt": "x"}, GenerationJob(prompt="x", priority=3, flush_ms=0)], run_id="r").poll()
    bodies = [json.loads(redis.hget(f"herd:default:{{batch-r-{n}}}:job", "body") or "") for n in range(2)]
    assert [(body["priority"], body["flush_ms"]) for body in bodies] == [(-10, 500), (3, 0)]


def test_celery_is_told_to_keep_no_result_which_could_come_after_the_purge(
    client: Client, redis: Redis
) -> None:
    client.batch(prompts(1)).poll()
    (message,) = redis.lrange(BULK_LIST, 0, -1)
    assert json.loads(message)["headers"]["ignore_result"] is True


def test_the_same_run_again_finds_its_jobs_and_reads_those_that_have_ended(
    client: Client, redis_url: str
) -> None:
    client.batch(prompts(20), run_id="r", window=10).poll()  # and is killed
    with StandIn(redis_url) as worker:
        while len(worker.answered) < 10:
            sleep(0.01)
        items = list(client.batch(prompts(20), run_id="r"))
    assert texts(items) == {number: f"tale {number}" for number in range(20)}
    assert sorted(worker.answered) == sorted(f"batch-r-{number}" for number in range(20))


def test_a_row_whose_job_was_forgotten_after_use_gets_another_id(client: Client, redis_url: str) -> None:
    with StandIn(redis_url) as worker:
        assert len(list(client.batch(prompts(2), run_id="r"))) == 2
        assert len(list(client.batch(prompts(2), run_id="r"))) == 2
    assert sorted(worker.answered) == ["batch-r-0", "batch-r-0.2", "batch-r-1", "batch-r-1.2"]


def test_jobs_that_redis_has_lost_are_submitted_again(client: Client, redis_url: str, redis: Redis) -> None:
    batch = client.batch(prompts(5))
    batch.poll()
    redis.flushall()
    with StandIn(redis_url):
        assert texts(list(batch)) == {number: f"tale {number}" for number in range(5)}


def test_a_full_queue_is_waited_for(redis_url: str, redis: Redis) -> None:
    with Client(redis_url, max_queue=3) as client:
        batch = client.batch(prompts(10))
        batch.poll()
        assert batch.window.num_under_way == 3
        assert batch.poll() == []
        assert depth(redis) == 3
        batch.window._submit_at_s = 0.0
        with StandIn(redis_url):
            items = []
            while not batch.window.is_over:
                items += batch.poll()
                batch.window._submit_at_s = 0.0
        assert len(items) == 10


@pytest.mark.long
def test_a_redis_that_is_away_loses_nothing(client: Client, redis_url: str) -> None:
    batch = client.batch(prompts(10))
    batch.poll()
    real = batch._run
    with Client("redis://127.0.0.1:1/0") as nowhere:
        batch._run = nowhere._run
        with pytest.raises(RedisUnavailable, match="cannot be reached"):
            next(batch)
    batch._run = real
    with StandIn(redis_url):
        assert texts(list(batch)) == {number: f"tale {number}" for number in range(10)}


def test_a_redis_without_room_is_relieved_of_what_has_ended(
    client: Client, redis_url: str, redis: Any
) -> None:
    batch = client.batch(prompts(20), window=8)
    batch.poll()
    with StandIn(redis_url) as worker:
        while len(worker.answered) < 8 or redis.zcard("herd:default:leases"):
            sleep(0.01)  # until their ends are written, for which there is no room later
        worker.hold()
        redis.config_set("maxmemory", 1)
        try:
            batch.window.size = 12  # so that four more are to be submitted, which Redis refuses
            ended = list(batch.poll())
            while len(ended) < 8:  # the word of an end may still be on its way
                ended += batch.poll()
            assert len(job_keys(redis)) == 16
            batch.window._submit_at_s = 0.0
            with pytest.raises(RedisUnavailable, match="is full"):
                batch.poll()
            assert job_keys(redis) == []
        finally:
            redis.config_set("maxmemory", 0)
        worker.go_on()
        batch.window._submit_at_s = 0.0
        assert len(list(batch)) == 12


def test_cancel_ends_what_is_under_way_and_says_so(client: Client) -> None:
    batch = client.batch(prompts(100), window=10)
    batch.poll()
    batch.cancel()
    items = list(batch)
    assert len(items) == 10
    assert {item.failure.code for item in items if item.failure} == {"cancelled"}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_cancel_while_jobs_are_sent_ends_these_too(
    client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """As another task does it: before the jobs are there, or before their answers are."""
    batch = client.batch(prompts(5))

    async def cancel_meanwhile(ledger: Ledger, lot: Sequence[PreparedJob]) -> Any:
        if not is_late:
            await batch.window.cancel()
        answers = await submit_lot(ledger, lot)
        if is_late:
            await batch.window.cancel()
        return answers

    monkeypatch.setattr(window, "submit_lot", cancel_meanwhile)
    assert [item.failure and item.failure.code for item in batch] == ["cancelled"] * 5
    assert job_keys(redis) == []


def test_a_cancel_that_redis_refuses_is_told_and_done_later(client: Client, redis: Any) -> None:
    batch = client.batch(prompts(5), run_id="r")
    batch.poll()
    redis.config_set("min-replicas-to-write", 1)
    try:
        for cancel in (batch.cancel, lambda: client.cancel_jobs(run_id="r")):
            with pytest.raises(RedisUnavailable, match="fewer replicas"):
                cancel()
    finally:
        redis.config_set("min-replicas-to-write", 0)
    assert [item.failure and item.failure.code for item in batch] == ["cancelled"] * 5


def test_a_row_is_not_tried_again_once_the_batch_is_cancelled(
    client: Client, redis_url: str, redis: Redis
) -> None:
    batch = client.batch(prompts(1))
    batch.poll()
    failure = Failure(code="model_error", message="any", retriable=True)
    with StandIn(redis_url, verdict=lambda job_id, job: failure):
        wait_until(lambda: client.count_jobs() == 0, "its job has failed")
    batch.cancel()
    items = [item for _ in range(3) for item in batch.poll()]
    assert [item.failure and item.failure.code for item in items] == ["cancelled"]
    assert batch.window.is_over
    assert job_keys(redis) == []


def test_the_asyncio_client_does_the_same(redis_url: str, redis: Redis) -> None:
    async def collect() -> list[BatchItem]:
        async with AsyncClient(redis_url) as client:
            return [item async for item in client.batch(prompts(100), in_order=True)]

    with StandIn(redis_url):
        items = asyncio.run(collect())
    assert texts(items) == {number: f"tale {number}" for number in range(100)}
    assert job_keys(redis) == []


def test_the_asyncio_client_takes_no_more_jobs_than_the_window_holds_and_may_be_left(
    redis_url: str, redis: Redis
) -> None:
    taken = count()

    async def take_one() -> int:
        async with AsyncClient(redis_url) as client:
            batch = client.batch(({"prompt": "x"} for _ in taken), window=7)
            async for _ in batch:
                break
            num_taken = next(taken)
            await batch.cancel()
            assert 1 + len([item async for item in batch]) == num_taken
            return num_taken

    with StandIn(redis_url):
        assert asyncio.run(take_one()) <= 2 * 7
    assert job_keys(redis) == []


def test_a_batch_goes_on_after_close_and_leaves_no_connection(redis_url: str, redis: Any) -> None:
    own = redis_url.replace("://", "://closing:word@")
    redis.acl_setuser(
        "closing", enabled=True, passwords=["+word"], commands=["+@all"], keys="*", channels="*"
    )

    def has_none() -> bool:
        return all(one["user"] != "closing" for one in redis.client_list())

    async def close_meanwhile() -> None:
        client = AsyncClient(own)
        batch = client.batch(prompts(100), window=10)
        await anext(batch)
        await client.close()
        assert len([item async for item in batch]) == 99
        await asyncio.to_thread(wait_until, has_none, "no connection is left")

    try:
        with StandIn(redis_url):
            asyncio.run(close_meanwhile())
    finally:
        redis.execute_command("ACL", "DELUSER", "closing")


def test_the_asyncio_client_cancels_and_reports(redis_url: str) -> None:
    async def talk() -> None:
        async with AsyncClient(redis_url) as client:
            batch = client.batch(prompts(5))
            await batch.poll()
            assert batch.window.num_under_way == 5
            await batch.cancel()
            assert {item.failure.code async for item in batch if item.failure} == {"cancelled"}
            await client.report_batch(BatchStatus(run_id="r", state="running", input_name="in"))
            assert [status.run_id for status in await client.batches()] == ["r"]

    asyncio.run(talk())


def test_an_operator_of_redis_may_run_one(redis_url: str, redis: Any) -> None:
    line = Acl("default", ["herd.tales"]).rights(Role.OPERATOR).user("op", "word", Dialect.FLAT)
    redis.execute_command("ACL", "SETUSER", *line.split()[1:])
    try:
        with StandIn(redis_url), Client(redis_url.replace("://", "://op:word@")) as client:
            assert len(list(client.batch(prompts(5)))) == 5
            client.batch(prompts(1)).cancel()
            client.report_batch(BatchStatus(run_id="r", state="running", input_name="in"))
            assert len(client.batches()) == 1
    finally:
        redis.execute_command("ACL", "DELUSER", "op")


def test_a_batch_that_fell_silent_is_not_listed_and_an_ended_one_is_for_a_while(
    client: Client, redis: Redis
) -> None:
    status = BatchStatus(run_id="r", state="running", input_name="in.jsonl", num_rows=9, rows_per_s=2.5)
    client.report_batch(status)
    client.report_batch(status.model_copy(update={"run_id": "s", "state": "done"}))
    seen = {found.run_id: found for found in client.batches()}
    assert seen["r"].model_copy(update={"beat_ms": 0}) == status
    assert seen["r"].left_s == pytest.approx(9 / 2.5)
    assert 0 < redis.ttl("herd:default:batch:r") <= 10 < redis.ttl("herd:default:batch:s") <= 3600
    redis.zadd("herd:default:batches", {"r": 1})
    assert [found.run_id for found in client.batches()] == ["s"]


def test_it_looks_often_where_jobs_end_fast_and_seldom_where_they_do_not() -> None:
    pause_s = MIN_PAUSE_S
    for _ in range(50):
        pause_s = next_pause_s(pause_s, 0)
    assert pause_s == MAX_PAUSE_S
    for _ in range(50):
        pause_s = next_pause_s(pause_s, 10)
    assert pause_s == MIN_PAUSE_S
