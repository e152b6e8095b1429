"""Purge and retention: no byte of a prompt or a text outlives its time in Redis, wherever it has been."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest
from redis import Redis

from llama_herd.errors import InvalidJob, JobConflict, JobNotFound, JobRunning
from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.ledger.answers import Cancellation, Ended, Purge
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import QUEUE, Herd, age_messages, commands, end, started, sweep

pytestmark = pytest.mark.redis

PROMPT, TEXT = b"canary of the prompt", b"canary of the text"
JOB = GenerationJob(prompt=PROMPT.decode(), model="tales")


def holders(redis: Any) -> set[str]:
    """Every key in which prompt or text stand, also inside base64."""
    return {key.decode() for key in redis.scan_iter() if any(map(has_canary, values(redis, key)))}


def values(redis: Any, key: bytes) -> Iterator[bytes]:
    match redis.type(key):
        case b"string":
            yield redis.get(key) or b""  # it may have expired by now
        case b"list":
            yield from redis.lrange(key, 0, -1)
        case b"hash":
            for pair in redis.hgetall(key).items():
                yield from pair
        case b"zset":
            yield from redis.zrange(key, 0, -1)
        case b"set":
            yield from redis.smembers(key)
        case b"stream":
            for _, fields in redis.xrange(key):
                yield from fields.values()


def has_canary(value: bytes) -> bool:
    shifted = [base64.b64encode(pad + word)[4:-4] for word in (PROMPT, TEXT) for pad in (b"", b"1", b"22")]
    return any(word in value for word in (PROMPT, TEXT, *shifted))


def bare_message(job_id: str) -> bytes:
    body = base64.b64encode(json.dumps([[], {"prompt": PROMPT.decode()}, {}]).encode()).decode()
    message = {"headers": {"id": job_id, "task": "herd.generate"}, "properties": {}, "body": body}
    return json.dumps(message).encode()


def finish(herd: Herd, job_id: str) -> None:
    """A worker runs the job, and Celery stores its result."""
    claimed = herd.claimed(job_id)
    text = Token(seq=2, job=job_id, epoch=claimed.epoch, i=0, ids=(1,), text=TEXT.decode())
    herd.emit("one", started(job_id), EmitEntry.from_event(text, 0), end(job_id, 3, 1))
    herd.redis.set(f"celery-task-meta-{job_id}", json.dumps({"result": {"text": TEXT.decode()}}))


def test_the_message_of_a_submitted_job_never_holds_its_prompt(client: Client, herd: Herd) -> None:
    client.submit(prompt=PROMPT.decode(), job_id="a")
    assert holders(herd.redis) == {herd.ledger.job_key("a")}


def test_after_a_purge_no_byte_of_prompt_or_text_is_in_redis(client: Client, herd: Herd) -> None:
    client.submit(prompt=PROMPT.decode(), job_id="a")
    finish(herd, "a")
    assert holders(herd.redis) == {
        herd.ledger.job_key("a"),
        herd.ledger.events_key("a"),
        "celery-task-meta-a",
    }
    client.purge("a")
    assert holders(herd.redis) == set()
    with pytest.raises(JobNotFound):
        client.result("a", timeout_s=0)


def hold_bare_message(herd: Herd) -> None:
    """Kombu's note of a message that a worker holds."""
    note = json.dumps([json.loads(bare_message("a")), "", QUEUE])
    herd.redis.hset("herd:default:unacked", "tag", note)
    herd.redis.zadd("herd:default:unacked_index", {"tag": 1})


def bury_bare_message(herd: Herd) -> None:
    letter = DeadLetters().bury(bare_message("a"), queue=QUEUE, reason="unknown task", worker="w")
    run_call(herd.redis, letter)


@pytest.mark.parametrize(
    "leave",
    [
        lambda herd: herd.redis.lpush(QUEUE, bare_message("a")),
        lambda herd: herd.redis.lpush(f"{QUEUE}\x06\x166", bare_message("a")),
        hold_bare_message,
        bury_bare_message,
    ],
    ids=["queued", "queued with a priority", "held by a worker", "dead letter"],
)
@pytest.mark.parametrize("has_record", [False, True])
def test_a_bare_message_is_forgotten_wherever_it_is(
    client: Client, herd: Herd, leave: Callable[[Herd], None], has_record: bool
) -> None:
    if has_record:
        call = herd.ledger.claim("a", "one", job=JOB, envelope=Envelope.for_job("a", QUEUE))
        run_call(herd.redis, call)
        herd.emit("one", started("a"), end("a", 2, 0))
    leave(herd)
    herd.redis.lpush(QUEUE, b"junk", bare_message("b"))
    client.purge("a", search=not has_record)
    assert holders(herd.redis) == {QUEUE}
    assert herd.redis.lrange(QUEUE, 0, -1) == [bare_message("b"), b"junk"]
    assert herd.redis.exists("herd:default:unacked", "herd:default:unacked_index") == 0


def test_a_key_of_the_queue_that_is_no_list_hides_no_message(client: Client, herd: Herd) -> None:
    herd.redis.sadd(f"{QUEUE}\x06\x163", "x")
    hold_bare_message(herd)
    bury_bare_message(herd)
    client.purge("a", search=True)
    assert holders(herd.redis) == set()


def test_a_bare_message_that_was_on_its_way_is_not_run_after_a_purge(client: Client, herd: Herd) -> None:
    """A worker has taken it from the queue and not claimed it yet."""
    herd.redis.lpush(QUEUE, bare_message("a"))
    client.purge("a", search=True)
    call = herd.ledger.claim("a", "one", job=JOB, envelope=Envelope.for_job("a", QUEUE))
    assert run_call(herd.redis, call) is Ended.FINISHED
    assert holders(herd.redis) == set()


def test_many_messages_hide_none(client: Client, herd: Herd) -> None:
    messages = [bare_message("a" if place % 7 == 0 else f"b-{place}") for place in range(2500)]
    herd.redis.rpush(QUEUE, *messages)
    client.purge("a", search=True)
    assert bare_message("a") not in herd.redis.lrange(QUEUE, 0, -1)
    assert herd.redis.llen(QUEUE) == sum(message != bare_message("a") for message in messages)


def test_purging_a_job_of_our_client_reads_neither_queue_nor_dead_letters(client: Client, herd: Herd) -> None:
    for name in "abc":
        client.submit(prompt="x", job_id=name)
    finish(herd, "a")

    def purge_all() -> None:
        for name in "ab":
            client.purge(name)
            client.purge(name)
        with pytest.raises(JobNotFound):
            client.purge("zz")

    names = {line.split()[0] for line in commands(herd.redis, purge_all, by_scripts=False)}
    assert names - {"HELLO", "CLIENT", "SCRIPT"} == {"HMGET", "EVALSHA"}


@pytest.mark.parametrize("search", [False, True])
def test_purging_nothing_leaves_nothing(client: Client, herd: Herd, search: bool) -> None:
    with pytest.raises(JobNotFound):
        client.purge("zz", search=search)
    assert herd.redis.keys() == []


def test_a_bare_message_beside_a_submitted_job_is_forgotten_too(client: Client, herd: Herd) -> None:
    client.submit(prompt="x", job_id="a")
    call = herd.ledger.claim("a", "one", job=JOB, envelope=Envelope.for_job("a", QUEUE))
    run_call(herd.redis, call)
    herd.emit("one", started("a"), end("a", 2, 0))
    hold_bare_message(herd)
    client.purge("a")
    assert holders(herd.redis) == set()


def test_a_search_that_broke_off_is_made_by_the_next_purge(client: Client, herd: Herd) -> None:
    """The record is gone by then, but for its mark."""
    call = herd.ledger.claim("a", "one", job=JOB, envelope=Envelope.for_job("a", QUEUE))
    run_call(herd.redis, call)
    herd.emit("one", started("a"), end("a", 2, 0))
    hold_bare_message(herd)
    assert run_call(herd.redis, herd.ledger.purge("a")) is Purge.BARE
    client.purge("a")
    assert holders(herd.redis) == set()


def test_a_job_whose_record_was_lost_is_searched_for(client: Client, herd: Herd) -> None:
    """Nobody knows how it came."""
    client.submit(prompt="x", job_id="a")
    herd.redis.delete(herd.ledger.job_key("a"))
    herd.claim("a")
    bury_bare_message(herd)
    client.purge("a")
    assert holders(herd.redis) == set()


def test_a_waiting_job_is_cancelled_by_its_purge_and_its_readers_hear_of_it(
    client: Client, herd: Herd
) -> None:
    client.submit(prompt=PROMPT.decode(), job_id="a")
    subscriber = herd.redis.pubsub(ignore_subscribe_messages=True)
    subscriber.subscribe(herd.ledger.channel("a"))
    subscriber.get_message(timeout=20)
    client.purge("a")
    assert json.loads(subscriber.get_message(timeout=20)["data"])["finish_reason"] == "cancelled"
    assert herd.redis.exists("herd:default:pending", "herd:default:waiting") == 0
    assert herd.claim("a") is Ended.FINISHED


def test_a_running_job_is_not_purged(client: Client, herd: Herd) -> None:
    client.submit(prompt=PROMPT.decode(), job_id="a")
    herd.claim("a")
    with pytest.raises(JobRunning, match=r"a worker runs job a\. Fix: cancel it"):
        client.purge("a")
    assert herd.kinds("one", started("a")) == ["ok"]
    assert client.cancel("a") is Cancellation.ASKED
    herd.emit("one", end("a", 2, 0, finish_reason="cancelled"))
    client.purge("a")
    assert holders(herd.redis) == set()


def test_a_dead_workers_job_is_purged(client: Client, herd: Herd) -> None:
    client.submit(prompt=PROMPT.decode(), job_id="a")
    herd.claim("a")
    herd.emit("one", started("a"))
    herd.pass_lease("a")
    client.purge("a")
    assert holders(herd.redis) == set()
    assert herd.kinds("one", end("a", 2, 0)) == ["fenced"]


def test_purging_again_is_no_error_and_purging_nothing_is(client: Client) -> None:
    client.submit(prompt="x", job_id="a")
    client.purge("a")
    client.purge("a")
    with pytest.raises(JobNotFound, match="no job zz"):
        client.purge("zz")
    with pytest.raises(InvalidJob):
        client.purge("a b")


def test_a_purged_id_is_free_when_its_mark_is_forgotten(client: Client, herd: Herd) -> None:
    client.submit(prompt="x", job_id="a")
    client.purge("a")
    with pytest.raises(JobConflict, match="or had it and was purged"):
        client.submit(prompt="x", job_id="a")
    assert client.cancel("a") is Cancellation.FINISHED
    assert 0 < herd.redis.ttl(herd.ledger.job_key("a")) <= herd.ledger.stream_ttl_s
    herd.redis.delete(herd.ledger.job_key("a"))
    client.submit(prompt="x", job_id="a")
    assert herd.redis.ttl(herd.ledger.job_key("a")) == -1


def test_all_that_are_over_are_purged_and_no_other(client: Client, herd: Herd, redis_url: str) -> None:
    for name in ("ended", "also-ended", "waiting", "running"):
        client.submit(prompt=PROMPT.decode(), job_id=name)
    finish(herd, "ended")
    client.cancel("also-ended")
    herd.claim("running")
    with Client(redis_url, tenant="other") as other:
        other.submit(prompt=PROMPT.decode(), job_id="foreign")
        other.cancel("foreign")
    assert client.purge_ended() == 2
    assert client.purge_ended() == 0
    kept = {herd.ledger.job_key("waiting"), herd.ledger.job_key("running")}
    assert holders(herd.redis) == kept | {Ledger("other").job_key("foreign")}


def test_the_asyncio_client_purges_too(redis_url: str, redis: Redis) -> None:
    async def talk() -> None:
        async with AsyncClient(redis_url) as client:
            await client.submit(prompt=PROMPT.decode(), job_id="a")
            await client.submit(prompt=PROMPT.decode(), job_id="b")
            await client.purge("a")
            await client.cancel("b")
            assert await client.purge_ended() == 1

    asyncio.run(talk())
    assert holders(redis) == set()


def cancel(herd: Herd, job_id: str) -> None:
    run_call(herd.redis, herd.ledger.cancel(job_id))


@pytest.mark.long
@pytest.mark.parametrize("end_it", [finish, cancel], ids=["run", "never claimed"])
def test_after_the_end_and_its_time_nothing_of_a_job_is_left(
    redis: Redis, end_it: Callable[[Herd, str], None]
) -> None:
    herd = Herd(redis, Ledger(stream_ttl_s=1))
    herd.submit("a", JOB)
    end_it(herd, "a")
    redis.delete("celery-task-meta-a")  # Celery's own time for it is another test's
    wait = Event()
    for _ in range(200):
        if not holders(redis):
            break
        wait.wait(0.02)
    assert holders(redis) == set()
    assert not redis.exists(herd.ledger.job_key("a"), herd.ledger.events_key("a"))


def test_a_job_that_nobody_claims_is_kept_however_long_and_one_with_a_deadline_is_not(herd: Herd) -> None:
    """What was accepted is never dropped in silence: a run ends it, a cancel, a purge or its deadline."""
    herd.submit("patient", JOB)
    herd.submit("hurried", JOB.model_copy(update={"deadline_ms": 1}))
    for name in ("patient", "hurried"):
        herd.pass_time(name, 30 * 86_400_000)
    age_messages(herd, 30 * 86_400_000)
    sweep(herd)
    assert herd.redis.ttl(herd.ledger.job_key("patient")) == -1
    (last,) = herd.events("hurried")
    assert (last.type, getattr(last, "finish_reason", None)) == ("end", "deadline")
    assert 0 < herd.redis.ttl(herd.ledger.job_key("hurried")) <= herd.ledger.failed_ttl_s
    assert 0 < herd.redis.ttl(herd.ledger.events_key("hurried")) <= herd.ledger.failed_ttl_s
    assert herd.claim("hurried") is Ended.FINISHED
