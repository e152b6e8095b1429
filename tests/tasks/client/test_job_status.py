"""What a client tells of single jobs, lists of them, and how it cancels many."""

import asyncio
import time
import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from llama_herd.errors import InvalidJob, JobNotFound, UnservedModel
from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.client import job_list
from llama_herd.tasks.client.job_cancel import forget_stale_messages
from llama_herd.tasks.client.job_list import ActiveState
from llama_herd.tasks.ledger import job_lists
from llama_herd.tasks.ledger.held_jobs import EmitEntry, HeldJob, prepare
from llama_herd.tasks.ledger.job_lists import JobRow
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.events import End, Failure
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import Settings
from tests.tasks.herd import FAILURE, QUEUE, Herd, commands, end, started

pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::llama_herd.errors.UnservedModel")]


@pytest.fixture
def client(redis_url: str, herd: Herd) -> Iterator[Client]:
    """Of a herd that serves tales."""
    worker = WorkerStatus(name="w", state="ready", model="tales", device="cpu", slots=4)
    run_call(herd.redis, Reports().report_worker(worker))
    with Client(redis_url) as client:
        yield client


def states(client: Client, **wanted: object) -> list[tuple[str, str]]:
    return [(job.job_id, job.state) for job in client.jobs(**wanted)]  # type: ignore[arg-type]


def test_a_job_says_whether_anybody_serves_it(client: Client, herd: Herd) -> None:
    client.submit(prompt="x", job_id="a")
    client.submit(prompt="x", job_id="b", model="gpt-4o-mini")
    client.submit(prompt="x", job_id="c", not_before=round(1000 * time.time()) + 60_000)
    assert [client.job(job_id).state for job_id in "abc"] == ["queued", "unserved", "delayed"]
    assert client.job("b").note == "no worker serves gpt-4o-mini: its jobs wait. Served are: tales"
    assert client.job("a").note == ""
    herd.claim("a")
    assert (client.job("a").state, client.job("a").worker) == ("running", "w")
    client.cancel("b")
    assert (client.job("b").state, client.job("b").note) == ("cancelled", "")
    with pytest.raises(JobNotFound):
        client.job("nothing")


def test_a_job_that_has_ended_says_how(client: Client, herd: Herd) -> None:
    failure = Failure(code="out_of_memory", message="the device lacked memory")
    fail = End(seq=1, job="a", epoch=1, finish_reason="error", n=0, attempts=1, error=failure)
    ends = {
        "a": EmitEntry.from_event(fail, 0),
        "b": end("b", 1, 0),
        "c": end("c", 1, 0, finish_reason="cancelled"),
        "d": end("d", 1, 0),  # before it heard of the cancel
    }
    for job_id, entry in ends.items():
        herd.submit(job_id)
        herd.claim(job_id)
        if job_id in "cd":
            client.cancel(job_id, "revoked")
        assert client.job(job_id).finish_reason is None
        assert herd.kinds("one", entry) == ["ok"]
    found = [client.job(job_id) for job_id in ends]
    assert [job.error for job in found] == [failure, None, None, None]
    assert [job.finish_reason for job in found] == ["error", "stop", "cancelled", "stop"]
    assert [job.cancel for job in found] == [None, None, "revoked", None]


def test_a_job_that_is_tried_again_says_when_why_and_how_often_yet(client: Client, herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.emit("one", started("a"))
    before = client.job("a")
    assert (before.retries, before.retries_left, before.retry_ms, before.attempts) == (0, None, None, 1)
    herd.put_back("a", seq=1)
    job, (listed,) = client.job("a"), client.jobs()
    assert (job.state, job.retries, job.retries_left, job.attempts) == ("delayed", 1, 2, 1)
    assert job.retry_error == FAILURE
    assert job.error is None
    assert job.retry_in_s is not None
    assert 3500 < job.retry_in_s <= 3600
    assert job.due_ms == before.due_ms
    told = (listed.state, listed.retries, listed.retries_left, listed.retry_ms, listed.attempts)
    assert told == ("delayed", 1, 2, job.retry_ms, 1)
    assert states(client, state="delayed") == [("a", "delayed")]
    assert states(client, state="queued") == []
    client.cancel("a")
    job = client.job("a")
    assert (job.state, job.retries, job.retry_ms, job.retry_error) == ("cancelled", 1, None, FAILURE)


def test_its_attempts_are_its_starts_as_in_its_result(client: Client, herd: Herd) -> None:
    """A death before the start counts against it, and is none."""
    herd.submit("a")
    claimed = herd.claimed("a")
    run_call(herd.redis, prepare("one", [HeldJob(herd.ledger, "a", claimed.epoch)]))
    herd.pass_lease("a")
    herd.claim("a", "two")
    assert herd.field("a", "deaths") == "1"
    assert client.job("a").attempts == client.jobs()[0].attempts == 0
    last = End(seq=2, job="a", epoch=2, finish_reason="stop", n=0, attempts=1)
    herd.emit("two", started("a", epoch=2), EmitEntry.from_event(last, 0))
    assert client.job("a").attempts == client.result("a").attempts == 1


def test_of_a_job_that_does_not_wait_the_record_alone_is_read(client: Client, herd: Herd) -> None:
    """A producer may read no more."""
    herd.submit("a")
    herd.claim("a")
    for state in ("running", "done"):
        heard = commands(herd.redis, lambda: client.job("a"), by_scripts=False)
        assert {line.split()[0] for line in heard} <= {"HMGET", "TIME", "HELLO", "CLIENT"}
        assert client.job("a").state == state
        herd.emit("one", end("a", 1, 0))


def test_who_waits_in_vain_is_told_why(client: Client) -> None:
    client.submit(prompt="x", job_id="a", model="gpt-4o-mini")
    with pytest.raises(TimeoutError, match=r"within 0.05 s: no worker serves gpt-4o-mini: .*: tales$"):
        client.result("a", timeout_s=0.05)


def test_jobs_are_listed_and_filtered(client: Client, herd: Herd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_lists, "MAX_LOOKS", 2)  # so that there are several pages
    monkeypatch.setattr(job_list, "MAX_PAGE", 1)
    for job_id in "abc":
        client.submit(prompt="x", job_id=job_id)
    client.submit(prompt="x", job_id="d", model="other")
    herd.claim("b")
    running, queued, unserved = ("b", "running"), [("a", "queued"), ("c", "queued")], ("d", "unserved")
    assert states(client) == [running, *queued, unserved]
    assert states(client, model="tales") == [running, *queued]
    assert states(client, state="queued") == queued
    assert states(client, state="unserved") == [unserved]
    assert states(client, state="running") == [running]
    assert states(client, limit=2) == [running, queued[0]]
    herd.redis.hincrby(herd.ledger.job_key("c"), "due_ms", -60_000)
    assert states(client, older_s=30) == [queued[1]]
    assert states(client, older_s=90) == []


@pytest.mark.parametrize("state", [None, "queued", "delayed"])
def test_no_more_records_are_read_than_listed(client: Client, herd: Herd, state: ActiveState | None) -> None:
    later = round(1000 * time.time()) + 60_000
    for number in range(50):
        client.submit(prompt="x", job_id=f"now-{number}")
        client.submit(prompt="x", job_id=f"later-{number}", not_before=later)
    listed = list[str]()
    heard = commands(
        herd.redis,
        lambda: listed.extend(name for name, _ in states(client, state=state, limit=5)),
        by_scripts=True,
    )
    assert len(listed) == 5
    # Each once for its row, and once for its place.
    assert sum("}:job" in line for line in heard if line.startswith("HMGET")) <= 2 * len(listed) + 1


@pytest.mark.parametrize(
    "wanted",
    [{"model": "tales"}, {"model": "tales", "state": "queued"}, {"state": "queued"}, {"state": "running"}],
)
def test_what_is_not_asked_for_is_not_read(client: Client, herd: Herd, wanted: dict[str, Any]) -> None:
    for number in range(200):
        client.submit(prompt="x", job_id=f"other-{number}", model="other")
    for number in range(6):
        client.submit(prompt="x", job_id=f"one-{number}", priority=number % 3 - 1)
    herd.claim("one-0")
    listed = list[str]()
    heard = commands(
        herd.redis,
        lambda: listed.extend(name for name, _ in states(client, limit=4, **wanted)),
        by_scripts=True,
    )
    expected = ["one-0"] if "queued" not in wanted.values() else []
    if wanted != {"state": "running"}:
        expected += [f"one-{number}" for number in range(1, 5)]
    assert listed == expected[:4]
    assert sum("}:job" in line for line in heard if line.startswith("HMGET")) <= 30


def test_no_served_queue_is_read_for_the_unserved(client: Client, herd: Herd) -> None:
    for number in range(200):
        client.submit(prompt="x", job_id=f"served-{number}")
    heard = commands(herd.redis, lambda: states(client, state="unserved"), by_scripts=True)
    # But the first of each lane, whose age the status tells.
    assert sum("}:job" in line for line in heard if line.startswith("HMGET")) <= 3


def test_a_damaged_record_hides_no_other_job(client: Client, herd: Herd) -> None:
    for job_id in "abc":
        client.submit(prompt="x", job_id=job_id)
    herd.redis.delete(herd.ledger.job_key("a"))
    herd.redis.set(herd.ledger.job_key("a"), "no hash")
    herd.redis.hset(herd.ledger.job_key("b"), mapping={"n": "many", "due_ms": "x", "queue": b"\xff"})
    assert [job_id for job_id, _ in states(client)] == ["b", "c"]


def test_a_queue_is_cancelled_and_no_other(
    client: Client, herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lists, "MAX_LOOKS", 3)
    for number in range(10):
        client.submit(prompt="x", job_id=f"a{number}")
        client.submit(prompt="x", job_id=f"b{number}", model="other")
    herd.claim("a3")
    assert client.count_jobs(model="tales") == 10
    assert client.cancel_jobs(model="tales") == 10
    assert [job.job_id for job in client.jobs()] == ["a3", *(f"b{number}" for number in range(10))]
    assert herd.field("a3", "cancel") == "cancelled"
    assert client.count_jobs(model="other") == 10


def test_messages_of_ended_jobs_go_where_nobody_takes_them(client: Client, herd: Herd) -> None:
    """A bare message is no job of the ledger's: it stays, and a worker that comes takes it."""
    bare = b'{"headers": {"id": "a"}, "properties": {"delivery_tag": "5c1a7e6e-50a5-5d0e-9d1f-0e6f6c6c616d"}}'
    for priority in (0, 1, -1):
        client.submit(prompt="x", model="nobody", priority=priority)
        client.cancel(client.submit(prompt="x", model="nobody", priority=priority))
        client.cancel(client.submit(prompt="x", priority=priority))
    herd.redis.lpush("herd.nobody", bare)
    assert run_dialogue(herd.redis, forget_stale_messages(herd.ledger, "nobody")) == 3
    assert sum(map(herd.redis.llen, lists_of("herd.nobody"))) == 4  # of those that wait, and the bare one
    assert client.cancel_jobs(model="nobody") == 3
    assert [
        herd.redis.lrange(name, 0, -1) for name in lists_of("herd.nobody") if herd.redis.exists(name)
    ] == [[bare]]
    client.cancel_jobs(model="tales")
    assert sum(map(herd.redis.llen, lists_of(QUEUE))) == 3  # the worker that serves it takes them


def test_the_jobs_of_a_queue_with_a_key_that_is_no_list_are_cancelled_and_counted(
    client: Client, herd: Herd
) -> None:
    for _ in range(3):
        client.submit(prompt="x", model="nobody")
    herd.redis.sadd("herd.nobody\x06\x163", "x")
    assert client.cancel_jobs(model="nobody") == 3
    assert client.count_jobs(model="nobody") == 0
    assert not herd.redis.exists("herd.nobody")


def test_a_batch_is_cancelled_and_none_whose_name_begins_alike(client: Client) -> None:
    kept = ["batch-night-1-0", "batch-nightly-0", "batch-night-x", "night-0"]
    gone = ["batch-night-0", "batch-night-12.2"]
    for job_id in kept + gone:
        client.submit(prompt="x", job_id=job_id)
    assert client.cancel_jobs(run_id="night") == 2
    assert sorted(job.job_id for job in client.jobs()) == sorted(kept)
    with pytest.raises(InvalidJob, match="run_id"):
        client.cancel_jobs(run_id="a b")
    with pytest.raises(TypeError):
        client.cancel_jobs()


def test_a_model_that_nobody_serves_is_answered_with_those_that_are(client: Client, herd: Herd) -> None:
    with pytest.warns(UnservedModel, match=r"no worker serves gpt-4o-mini: .* Served are: tales$") as caught:
        job_id = client.submit(prompt="x", model="gpt-4o-mini")
    assert caught[0].filename == __file__
    assert client.job(job_id).state == "unserved"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.submit(prompt="x")
        herd.redis.delete("herd:default:served")  # no worker is up: the name may well be right
        client.submit(prompt="x", model="gpt-4o-mini")


def test_a_mistyped_model_is_answered_with_what_was_meant(client: Client, herd: Herd) -> None:
    with pytest.warns(UnservedModel, match=r"taels: its jobs wait\. Did you mean tales\? Served are: tales$"):
        client.submit(prompt="x", job_id="a", model="taels")
    assert "Did you mean tales?" in client.job("a").note


def test_a_model_that_may_have_no_worker_is_no_mistake(client: Client, redis_url: str) -> None:
    settings = Settings(redis_url=redis_url, models="asleep,taels")
    with Client(settings=settings) as other, warnings.catch_warnings():
        warnings.simplefilter("error")
        other.submit(prompt="x", model="taels")
        (queue,) = (queue for queue in other.status().queues if queue.model == "taels")
        assert (queue.waiting, queue.due, queue.workers) == (1, 1, 0)


def test_the_asyncio_client_warns_too(client: Client, redis_url: str) -> None:
    async def submit() -> None:
        async with AsyncClient(redis_url) as other:
            with pytest.warns(UnservedModel) as caught:
                await other.submit(prompt="x", model="gpt-4o-mini")
            assert caught[0].filename == __file__

    asyncio.run(submit())


@pytest.mark.parametrize("model", [None, "tales"])
def test_a_job_that_is_claimed_while_jobs_are_listed_is_listed_once(
    client: Client, herd: Herd, monkeypatch: pytest.MonkeyPatch, model: str | None
) -> None:
    """Whichever lists were read by then."""
    rows = job_list._rows

    async def claim_before(*args: Any) -> list[JobRow]:
        if next(countdown) == 0:
            herd.claimed(job_id)
        return await rows(*args)

    monkeypatch.setattr(job_list, "_rows", claim_before)
    for num_before in range(5):
        job_id, countdown = f"job-{num_before}", count(num_before, -1)
        herd.submit(job_id)
        assert [name for name, _ in states(client, model=model)].count(job_id) == 1
