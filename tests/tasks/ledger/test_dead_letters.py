"""What nobody runs is kept, listed, run again or dropped: messages by their number, jobs by their id."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from llama_herd.errors import InvalidJob, JobNotFound, JobRunning, RedisUnavailable
from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.ledger.answers import DeadJob, DeadLetter, Ended, Yours
from llama_herd.tasks.ledger.dead_letters import MAX_LETTER_BYTES, MAX_LETTERS, DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call
from llama_herd.tasks.ledger.sweep import due_for_sweep
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.terms import MAX_NOTES
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, ids, started, sweep

pytestmark = pytest.mark.redis

LETTERS = DeadLetters(ttl_s=3600)


def bury(redis: Any, raw: bytes, reason: str = "not JSON") -> None:
    run_call(redis, LETTERS.bury(raw, queue=QUEUE, reason=reason, worker="w1"))


def poison(herd: Herd, job_id: str, job: GenerationJob = JOB) -> None:
    """Let a job end three workers."""
    herd.submit(job_id, job)
    for epoch in (1, 2, 3):
        herd.claim(job_id)
        herd.emit("one", started(job_id, seq=epoch, epoch=epoch))
        herd.pass_lease(job_id)
    assert herd.claim(job_id) is Ended.POISON


def test_a_job_that_was_given_up_is_listed_with_its_last_worker(client: Client, herd: Herd) -> None:
    poison(herd, "a")
    (dead,) = client.dead()
    assert dead == DeadJob("a", dead.at_ms, "w", QUEUE, 3, "poisoned")
    assert abs(dead.at_ms / 1000 - herd.redis.time()[0]) < 10
    assert 0 <= 604_800 - herd.redis.ttl(herd.ledger.job_key("a")) < 10
    assert 0 <= 604_800 - herd.redis.ttl(herd.ledger.events_key("a")) < 10


def test_a_job_that_was_given_up_is_listed_as_long_as_its_own_worker_keeps_it(
    client: Client, herd: Herd
) -> None:
    poison(herd, "a")
    poison(replace(herd, ledger=replace(herd.ledger, dead_ttl_s=60)), "b")
    assert herd.redis.ttl("herd:default:quarantine") > 604_700


def test_a_purge_takes_it_off_the_list(client: Client, herd: Herd) -> None:
    for job_id in ("a", "b"):
        poison(herd, job_id)
    client.purge("a")
    assert [run_call(herd.redis, DeadLetters().is_quarantined(one)) for one in ("a", "b")] == [False, True]


def test_its_history_is_all_there(client: Client, herd: Herd) -> None:
    poison(herd, "a")
    record, events, body = client.history("a")
    assert (record.state, record.worker, record.attempts) == ("failed", "w", 3)
    assert [event.type for event in events] == ["started", "started", "started", "end"]
    assert body["prompt"] == JOB.prompt
    with pytest.raises(JobNotFound):
        client.history("zz")


def test_a_retry_is_a_new_job_without_the_old_times(client: Client, herd: Herd) -> None:
    poison(herd, "a", JOB.model_copy(update={"deadline_ms": 2**52, "not_before": 1, "metadata": {"k": "v"}}))
    herd.redis.delete(QUEUE)
    retried = client.retry("a")
    assert (retried.queue, ids(herd)) == (QUEUE, [retried.job_id])
    assert retried.job_id not in (None, "a")
    claimed = herd.claim(str(retried.job_id))
    assert isinstance(claimed, Yours)
    assert GenerationJob.model_validate_json(claimed.body) == JOB.model_copy(
        update={"metadata": {"k": "v", "retry_of": "a"}}
    )
    assert client.dead() == []
    assert client.retry("a") == retried
    with pytest.raises(JobNotFound, match="no job that has ended and no dead letter has the id b"):
        client.retry("b")


def test_a_retry_has_the_secret_of_its_webhook(client: Client, herd: Herd) -> None:
    own = {"webhook": "https://example.com/", "webhook_secret": "whsec_" + 32 * "A"}
    poison(herd, "a", JOB.model_copy(update=own))
    assert herd.field(str(client.retry("a").job_id), "webhook_secret") == own["webhook_secret"]


def test_a_retry_of_a_job_that_is_purged_meanwhile_does_not_find_it(
    client: Client, herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_body = Ledger.body

    def purge_before(ledger: Ledger, job_id: str) -> RedisCall[bytes | None]:
        client.purge(job_id)
        return read_body(ledger, job_id)

    poison(herd, "a")
    monkeypatch.setattr(Ledger, "body", purge_before)
    with pytest.raises(JobNotFound):
        client.retry("a")


def test_a_retry_whose_answer_was_lost_may_be_repeated(client: Client, herd: Herd) -> None:
    poison(herd, "a")
    first = client.retry("a")
    # As if the connection had broken after the job was accepted.
    herd.redis.zadd("herd:default:quarantine", {"a": 1})
    assert client.retry("a") == first
    assert run_call(herd.redis, herd.ledger.num_pending()) == 1


def test_a_bare_job_is_retried_in_the_queue_it_came_by(client: Client, herd: Herd) -> None:
    job = GenerationJob(prompt="x")
    claim = herd.ledger.claim("a", "one", job=job, envelope=Envelope.for_job("a", "herd.other"))
    run_call(herd.redis, claim)
    herd.redis.hset(herd.ledger.job_key("a"), "deaths", 3)
    herd.pass_lease("a")
    assert herd.claim("a") is Ended.POISON
    assert client.retry("a").queue == "herd.other"
    assert herd.redis.llen("herd.other") == 1


def test_only_jobs_that_have_ended_can_be_retried(client: Client, herd: Herd) -> None:
    herd.submit("a")
    with pytest.raises(JobRunning, match="has not ended"):
        client.retry("a")
    client.cancel("a")
    assert herd.field(str(client.retry("a").job_id), "state") == "queued"


def test_a_job_with_all_notes_that_it_may_have_is_retried_without_one_more(
    client: Client, herd: Herd
) -> None:
    notes = {str(number): "x" for number in range(MAX_NOTES)}
    herd.submit("a", JOB.model_copy(update={"metadata": notes}))
    client.cancel("a")
    body = client.history(str(client.retry("a").job_id)).body
    assert body["metadata"] == notes


def test_a_message_is_kept_as_it_came_and_pushed_back_by_its_number(client: Client, redis: Redis) -> None:
    raw = b"\xff\x00 any bytes"
    bury(redis, raw)
    (dead,) = client.dead()
    assert dead == DeadLetter(dead.number, dead.at_ms, "not JSON", "w1", QUEUE, raw, len(raw))  # type: ignore[union-attr]
    assert client.retry(dead.number) == (None, QUEUE)
    assert redis.lrange(QUEUE, 0, -1) == [raw]
    assert client.dead() == []
    with pytest.raises(JobNotFound):
        client.retry(dead.number)


def test_a_letter_tells_the_head_of_its_message_though_that_was_cut(client: Client, redis: Redis) -> None:
    head = {"id": "a", "task": "no.such.task", "origin": "gen12@host"}
    bury(redis, json.dumps({"body": "x" * MAX_LETTER_BYTES, "headers": head}).encode())
    bury(redis, b"no message")
    other, letter = client.dead()
    assert isinstance(letter, DeadLetter)
    assert isinstance(other, DeadLetter)
    assert not letter.is_whole
    assert (letter.task_id, letter.task, letter.origin) == ("a", "no.such.task", "gen12@host")
    assert (other.task_id, other.task, other.origin) == (None, None, None)


def test_a_message_that_was_cut_is_not_pushed_back(client: Client, redis: Redis) -> None:
    bury(redis, b"x" * (MAX_LETTER_BYTES + 1))
    (dead,) = client.dead()
    assert isinstance(dead, DeadLetter)
    assert (len(dead.raw), dead.num_bytes) == (MAX_LETTER_BYTES, MAX_LETTER_BYTES + 1)
    with pytest.raises(InvalidJob, match="only 65536 of its 65537 bytes were kept"):
        client.retry(dead.number)
    assert redis.llen(QUEUE) == 0
    assert client.dead() == [dead]


def test_a_letter_stays_while_its_queue_is_no_list_and_the_key_is_named(client: Client, redis: Redis) -> None:
    bury(redis, b"raw")
    (letter,) = client.dead()
    assert isinstance(letter, DeadLetter)
    redis.set(QUEUE, "x")
    with pytest.raises(RedisUnavailable, match=f'its key "{QUEUE}" is a string, not a list. Fix: '):
        client.retry(letter.number)
    assert client.dead() == [letter]
    redis.delete(QUEUE)
    assert client.retry(letter.number).queue == QUEUE


def test_a_letter_that_names_another_tenants_queue_is_not_pushed(client: Client, redis: Redis) -> None:
    run_call(redis, LETTERS.bury(b"raw", queue="herd.other:tales", reason="not JSON", worker="w1"))
    (dead,) = client.dead()
    assert isinstance(dead, DeadLetter)
    with pytest.raises(InvalidJob, match="did not come from a queue of this tenant"):
        client.retry(dead.number)
    assert not redis.exists("herd.other:tales")
    assert client.dead() == [dead]


def test_the_dead_are_listed_together_the_last_one_first(client: Client, herd: Herd) -> None:
    bury(herd.redis, b"one")
    poison(herd, "a")
    bury(herd.redis, b"two")
    herd.redis.zincrby("herd:default:quarantine", -1_000_000, "a")
    found = client.dead()
    assert [one.raw if isinstance(one, DeadLetter) else one.job_id for one in found] == [b"two", b"one", "a"]
    assert client.dead(limit=1) == found[:1]


def test_a_dead_message_or_job_can_be_dropped(client: Client, herd: Herd) -> None:
    bury(herd.redis, b"one")
    poison(herd, "a")
    (letter,) = run_call(herd.redis, LETTERS.letters())
    client.drop(letter.number)
    client.drop("a")
    assert client.dead() == []
    assert not herd.redis.exists(herd.ledger.events_key("a"))
    for name in (letter.number, "zz"):
        with pytest.raises(JobNotFound):
            client.drop(name)


def test_a_job_that_was_given_up_counts_for_its_time_only(client: Client, herd: Herd) -> None:
    poison(herd, "a")
    sweep(herd)
    assert client.status().poisoned == 1
    herd.redis.delete(herd.ledger.job_key("a"), herd.ledger.events_key("a"))  # its time is over
    herd.redis.zadd("herd:default:quarantine", {"a": 1})
    herd.redis.hset(SWEEP, "last", 1)
    assert run_call(herd.redis, due_for_sweep([herd.ledger])) == [True]
    sweep(herd)
    assert client.status().poisoned == 0


@pytest.mark.long
def test_the_newest_thousand_messages_are_kept_for_their_time_only(redis: Redis) -> None:
    for number in range(MAX_LETTERS + 5):
        bury(redis, b"%d" % number)
    letters = run_call(redis, LETTERS.letters(MAX_LETTERS + 10))
    assert [letter.raw for letter in (letters[0], letters[-1])] == [b"1004", b"5"]
    assert 3590 < redis.ttl("herd:default:dead") <= 3600


def test_a_sweep_forgets_the_messages_whose_time_is_over_and_no_others(herd: Herd) -> None:
    herd.redis.xadd("herd:default:dead", {"raw": "old"}, id="1-1")
    number = herd.redis.xadd("herd:default:dead", {"raw": "new"})
    sweep(herd)
    assert herd.redis.xrange("herd:default:dead") == [(number, {b"raw": b"new"})]


def test_a_job_whose_record_is_forgotten_is_not_listed(client: Client, herd: Herd) -> None:
    poison(herd, "a")
    herd.redis.delete(herd.ledger.job_key("a"), herd.ledger.events_key("a"))
    assert client.dead() == []


def test_a_tenants_dead_are_its_own(client: Client, herd: Herd, redis_url: str) -> None:
    poison(herd, "a")
    bury(herd.redis, b"one")
    with Client(redis_url, tenant="other") as other:
        assert other.dead() == []
        with pytest.raises(JobNotFound):
            other.retry("a")


def test_the_asyncio_client_does_the_same(redis_url: str, herd: Herd) -> None:
    async def talk() -> None:
        async with AsyncClient(redis_url) as client:
            (dead,) = await client.dead()
            assert (await client.history("a")).record.attempts == 3
            assert (await client.retry("a")).queue == dead.queue
            with pytest.raises(JobNotFound):
                await client.drop("1-1")

    poison(herd, "a")
    asyncio.run(talk())
    assert run_call(herd.redis, herd.ledger.num_pending()) == 1
