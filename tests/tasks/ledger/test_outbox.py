"""An end and its webhook are written together, whichever way a job ends."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.answers import Cancellation, Emission, Purge, Submission, Submitted
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.outbox import Outbox, WebhookEntry, webhook_message_id
from llama_herd.tasks.ledger.redis_call import redis_time_ms, run_call, run_calls, run_dialogue
from llama_herd.tasks.ledger.webhook_configs import (
    SENDER,
    WebhookConfig,
    drop_config,
    hold_sender_role,
    store_config,
)
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.webhooks.setup import retry_all_webhooks
from tests.tasks.herd import JOB, QUEUE, Herd, commands, end, started, sweep

pytestmark = pytest.mark.redis

OUTBOX = Outbox()
HOOK = "https://example.com/own?key=1"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OWN = JOB.model_copy(update={"webhook": HOOK, "webhook_secret": SECRET})
KEYS = ("herd:default:outbox", "herd:default:outbox:entries", "herd:default:outbox:dead")


def configure(redis: Redis, *, jobs: bool = True) -> None:
    config = WebhookConfig("default", "https://example.com/hook", "whsec_x", ("api.example.com",), jobs, 1)
    run_calls(redis, store_config(config))


@pytest.fixture
def redis(server: EmbeddedRedis) -> Iterator[Redis]:
    """Of these tests alone: gateways of other tests would send what is in the outbox."""
    with Redis.from_url(server.url) as redis:
        redis.flushall()
        yield redis


@pytest.fixture
def told(herd: Herd) -> Herd:
    """A herd whose tenant is told of all ends."""
    configure(herd.redis)
    return herd


def entries(herd: Herd) -> dict[str, dict[str, Any]]:
    """The entries of the outbox: each of them is listed, and due."""
    held = {name.decode(): json.loads(raw) for name, raw in herd.redis.hgetall(KEYS[1]).items()}
    listed = dict(herd.redis.zrange(KEYS[0], 0, -1, withscores=True))
    assert {name.decode() for name in listed} == set(held)
    assert all(score == held[name.decode()]["ended_ms"] for name, score in listed.items())
    return held


def the_entry(herd: Herd) -> tuple[str, str, str | None]:
    """Type, state and finish reason of the one webhook, which is that of the job `a`."""
    ((name, entry),) = entries(herd).items()
    assert (name, entry["id"], entry["tries"]) == ("msg_a", "a", 0)
    return entry["type"], entry["state"], entry.get("finish_reason")


def run_to_the_end(herd: Herd, job_id: str, job: GenerationJob = JOB) -> None:
    herd.submit(job_id, job)
    herd.claimed(job_id)
    assert herd.kinds("one", started(job_id), end(job_id, 2, 0)) == [Emission.OK, Emission.OK]


def test_of_a_worker(told: Herd) -> None:
    told.submit("a")
    told.claimed("a")
    told.emit("one", started("a"))
    assert not entries(told)
    told.emit("one", end("a", 2, 0))
    assert the_entry(told) == ("job.completed", "done", "stop")


def test_of_a_worker_that_tries_it_again(told: Herd) -> None:
    told.submit("a")
    told.claimed("a")
    assert told.put_back("a", delay_ms=0).kind is Emission.OK
    assert not entries(told)
    sweep(told)
    told.claimed("a", "two")
    told.emit("two", end("a", 1, 0, epoch=2))
    assert the_entry(told) == ("job.completed", "done", "stop")


def test_of_a_worker_whose_stream_was_spoilt(told: Herd) -> None:
    told.submit("a")
    told.claimed("a")
    told.redis.set(told.ledger.events_key("a"), "x")
    assert told.kinds("one", end("a", 1, 0, finish_reason="error")) == [Emission.FINISHED]
    assert the_entry(told) == ("job.failed", "failed", "error")


def test_of_a_call_that_is_repeated_there_is_one(told: Herd) -> None:
    run_to_the_end(told, "a")
    run_call(told.redis, OUTBOX.sent(run_call(told.redis, OUTBOX.due(1, 1000))[0]))
    assert told.kinds("one", end("a", 2, 0)) == [Emission.DUPLICATE]
    assert not entries(told)


def test_of_a_cancel_while_it_waits(told: Herd) -> None:
    told.submit("a")
    assert run_call(told.redis, told.ledger.cancel("a")) is Cancellation.CANCELLED
    assert the_entry(told) == ("job.cancelled", "cancelled", "cancelled")


def test_of_a_deadline_by_a_sweep(told: Herd) -> None:
    told.submit("a", JOB.model_copy(update={"deadline_ms": 1}))
    sweep(told)
    assert the_entry(told) == ("job.failed", "failed", "deadline")


def test_of_a_deadline_by_a_claim(told: Herd) -> None:
    told.submit("a", JOB.model_copy(update={"deadline_ms": 1}))
    told.claim("a")
    assert the_entry(told) == ("job.failed", "failed", "deadline")


def test_of_poison(told: Herd) -> None:
    told.submit("a")
    for epoch in range(1, told.ledger.max_deaths + 1):
        told.claimed("a")
        told.emit("one", started("a", seq=epoch, epoch=epoch))
        told.pass_lease("a")
    told.claim("a")
    assert the_entry(told) == ("job.failed", "failed", "error")


def test_of_a_record_that_is_lost(told: Herd) -> None:
    told.submit("a")
    told.redis.delete(told.ledger.job_key("a"))
    told.claim("a")
    assert the_entry(told) == ("job.failed", "failed", "error")


def test_rows_of_batches_have_none(told: Herd) -> None:
    run_to_the_end(told, "batch-r-1", JOB.model_copy(update={"webhook": HOOK}))
    told.submit("batch-r-2")
    run_call(told.redis, told.ledger.cancel("batch-r-2"))
    assert not told.redis.exists(*KEYS)


def test_without_webhooks_there_are_none(herd: Herd) -> None:
    run_to_the_end(herd, "a", JOB.model_copy(update={"webhook": HOOK}))
    herd.submit("b")
    run_call(herd.redis, herd.ledger.cancel("b"))
    assert not herd.redis.exists(*KEYS)


def test_a_tenant_that_wants_some_ends_is_told_of_jobs_that_name_an_address(herd: Herd) -> None:
    configure(herd.redis, jobs=False)
    run_to_the_end(herd, "b")
    run_to_the_end(herd, "a", JOB.model_copy(update={"webhook": HOOK}))
    assert the_entry(herd) == ("job.completed", "done", "stop")
    assert entries(herd)["msg_a"]["url"] == HOOK
    assert herd.field("a", "webhook") == HOOK


def holders(redis: Redis) -> set[str]:
    """Every hash in which the job's own secret stands."""
    held = {key.decode(): redis.hvals(key) for key in redis.scan_iter(_type="hash")}
    return {key for key, values in held.items() if any(SECRET.encode() in value for value in values)}


def test_the_secret_of_a_job_goes_from_its_record_to_its_webhook_and_nowhere_else(told: Herd) -> None:
    record = told.ledger.job_key("a")
    told.submit("a", OWN)
    told.claimed("a")
    assert holders(told.redis) == {record}
    assert told.field("a", "body") == OWN.to_json()
    told.emit("one", started("a"), end("a", 2, 0))
    assert holders(told.redis) == {record, KEYS[1]}
    told.redis.delete(record)
    (entry,) = run_call(told.redis, OUTBOX.due(1, 1000))
    assert (entry.url, entry.secret) == (HOOK, SECRET)
    assert SECRET not in repr(entry)
    run_call(told.redis, OUTBOX.put_off(entry.failed("x"), 0))
    assert run_call(told.redis, OUTBOX.due(1, 1000))[0].secret == SECRET
    run_call(told.redis, OUTBOX.sent(entry))
    assert not holders(told.redis)


def test_the_secret_of_a_job_that_nobody_runs_goes_to_its_webhook(told: Herd) -> None:
    told.submit("a", OWN)
    run_call(told.redis, told.ledger.cancel("a"))
    assert entries(told)["msg_a"]["secret"] == SECRET


def test_the_secret_of_a_bare_message_goes_to_its_webhook(told: Herd) -> None:
    run_call(told.redis, told.ledger.claim("a", "one", job=OWN, envelope=Envelope.for_job("a", QUEUE)))
    told.emit("one", started("a"), end("a", 2, 0))
    assert entries(told)["msg_a"]["secret"] == SECRET


@pytest.mark.parametrize("has_record", [True, False])
def test_a_purge_forgets_the_secret(told: Herd, has_record: bool) -> None:
    run_to_the_end(told, "a", OWN)
    if not has_record:
        told.redis.delete(told.ledger.job_key("a"))
    run_call(told.redis, told.ledger.purge("a"))
    assert not holders(told.redis)


def test_a_secret_without_an_address_signs_nothing(told: Herd) -> None:
    """Only somebody who writes into the record himself gets one there."""
    told.submit("a")
    told.redis.hset(told.ledger.job_key("a"), "webhook_secret", SECRET)
    run_call(told.redis, told.ledger.cancel("a"))
    assert "secret" not in entries(told)["msg_a"]


@pytest.mark.parametrize("other", [None, SECRET[:-2] + "AA"])
def test_another_secret_is_another_job(herd: Herd, other: str | None) -> None:
    def submit(job: GenerationJob) -> tuple[Submission, Submission]:
        new = ("a", job, Envelope.for_job("a", QUEUE))
        (many,) = run_call(herd.redis, herd.ledger.submit_many([herd.ledger.submit_item(*new)]))
        assert isinstance(many, Submitted)
        return run_call(herd.redis, herd.ledger.submit(*new)).kind, many.kind

    assert submit(OWN) == (Submission.EXISTS, Submission.SUBMITTED)
    assert submit(OWN.model_copy(update={"webhook_secret": other})) == 2 * (Submission.CONFLICT,)


def test_after_the_removal_there_are_none(told: Herd) -> None:
    assert run_calls(told.redis, drop_config("default")) == [1, True]
    run_to_the_end(told, "a")
    assert not told.redis.exists(*KEYS)


def test_without_webhooks_an_end_costs_one_read_more(herd: Herd) -> None:
    herd.submit("a")
    ran = commands(herd.redis, lambda: run_call(herd.redis, herd.ledger.cancel("a")), by_scripts=True)
    assert sum("herd:default:webhook" in one for one in ran) == 1
    assert not [one for one in ran if "outbox" in one]


def test_an_outbox_of_another_type_holds_up_no_end(told: Herd) -> None:
    for key in (*KEYS, "herd:default:webhook"):
        told.redis.delete(key)
        told.redis.set(key, "x")
        run_to_the_end(told, f"a{key[-3:]}")
    assert run_call(told.redis, told.ledger.purge("aoox")) is Purge.UNKNOWN
    sweep(told)


def test_a_dot_in_an_id_is_no_dot_in_that_of_its_webhook(told: Herd) -> None:
    run_to_the_end(told, "a.b:c")
    assert list(entries(told)) == ["msg_a~b:c"] == [webhook_message_id("a.b:c")]


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_purge_forgets_it(told: Herd, is_dead: bool) -> None:
    run_to_the_end(told, "a")
    (entry,) = run_call(told.redis, OUTBOX.due(1, 1000))
    if is_dead:
        run_call(told.redis, OUTBOX.give_up(entry))
    run_call(told.redis, told.ledger.purge("a"))
    assert not told.redis.exists(*KEYS)
    for late in (OUTBOX.put_off(entry, 5), OUTBOX.give_up(entry), OUTBOX.sent(entry)):
        run_call(told.redis, late)
        assert not told.redis.exists(*KEYS)


def test_a_purge_forgets_that_of_a_job_that_waits(told: Herd) -> None:
    told.submit("a")
    run_call(told.redis, told.ledger.purge("a"))
    assert not told.redis.exists(*KEYS)


def test_a_purge_forgets_that_of_a_job_without_a_record(told: Herd) -> None:
    run_to_the_end(told, "a")
    told.redis.delete(told.ledger.job_key("a"))
    assert run_call(told.redis, told.ledger.purge("a")) is Purge.UNKNOWN
    assert not told.redis.exists(*KEYS)


def test_what_is_due_is_taken_once_and_comes_again_if_nobody_settles_it(told: Herd) -> None:
    run_to_the_end(told, "a")
    before = run_call(told.redis, redis_time_ms())
    (entry,) = run_call(told.redis, OUTBOX.due(10, 60_000))
    assert entry == WebhookEntry("msg_a", "job.completed", "a", "done", entry.ended_ms, 0, "stop")
    assert run_call(told.redis, OUTBOX.due(10, 60_000)) == []
    ((_, again_ms),) = run_call(told.redis, OUTBOX.message_ids("waiting", 10))
    assert before <= again_ms - 60_000 <= run_call(told.redis, redis_time_ms())
    told.redis.zadd(KEYS[0], {"msg_a": 1})
    assert run_call(told.redis, OUTBOX.due(10, 60_000)) == [entry]


def test_what_is_due_without_an_entry_leaves_the_outbox(told: Herd) -> None:
    """It would be due before all others for ever, and nobody can send it."""
    run_to_the_end(told, "a")
    told.redis.zadd(KEYS[0], {"msg_gone": 1})
    assert run_call(told.redis, OUTBOX.due(1, 60_000)) == []
    assert [one.id for one in run_call(told.redis, OUTBOX.due(1, 60_000))] == ["a"]


@pytest.mark.parametrize(
    ("field", "number"),
    [pytest.param("ended_ms", 10**400, id="late"), ("ended_ms", -1), ("tries", -100)],
)
def test_an_entry_with_a_number_that_nobody_reckons_with_is_left_out(
    told: Herd, field: str, number: int
) -> None:
    """Producers may write entries. An error at one would end the round of the sender, for all tenants."""
    for job_id in ("a", "b"):
        told.submit(job_id)
        run_call(told.redis, told.ledger.cancel(job_id))
    forged = json.loads(told.redis.hget("herd:default:outbox:entries", "msg_a")) | {field: number}
    told.redis.hset("herd:default:outbox:entries", "msg_a", json.dumps(forged))
    assert [entry.id for entry in run_call(told.redis, OUTBOX.due(10, 60_000))] == ["b"]


def test_a_time_that_is_none_hides_no_other_webhook(told: Herd) -> None:
    """Producers may write times, too."""
    run_to_the_end(told, "a")
    told.redis.zadd(KEYS[0], {"msg_forged": "inf"})
    (own, forged) = run_call(told.redis, OUTBOX.message_ids("waiting", 10))
    assert (own[0], forged) == (b"msg_a", (b"msg_forged", 0))
    assert run_call(told.redis, OUTBOX.message_ids("waiting", 1)) == [own]


def test_what_was_given_up_is_tried_anew(told: Herd) -> None:
    run_to_the_end(told, "a")
    (entry,) = run_call(told.redis, OUTBOX.due(10, 60_000))
    run_call(told.redis, OUTBOX.put_off(entry.failed("x"), 60_000))
    told.redis.zadd(KEYS[0], {"msg_a": 1})
    (failed,) = run_call(told.redis, OUTBOX.due(10, 60_000))
    assert (failed.tries, failed.error) == (1, "x")
    run_call(told.redis, OUTBOX.give_up(failed.failed("y")))
    ((message, _),) = run_call(told.redis, OUTBOX.message_ids("dead", 10))
    assert message == b"msg_a"
    assert run_call(told.redis, OUTBOX.retry(["msg_a", "msg_b"])) == 1
    assert run_call(told.redis, OUTBOX.due(10, 60_000)) == [entry]


@pytest.mark.parametrize(
    "forged", ["{", "3", '"3"', "null", '{"tries":NaN,"a":NaN}', '{"a":1e400}', "[" * 10_000]
)
def test_what_cannot_be_read_keeps_no_other_from_being_tried_anew(told: Herd, forged: str) -> None:
    run_to_the_end(told, "a")
    (entry,) = run_call(told.redis, OUTBOX.due(10, 60_000))
    run_call(told.redis, OUTBOX.give_up(entry))
    told.redis.zadd(KEYS[2], {b"\xff": 1})  # before the other
    told.redis.hset(KEYS[1], b"\xff", forged)
    assert run_dialogue(told.redis, retry_all_webhooks("default")) == 1
    assert run_call(told.redis, OUTBOX.count("dead")) == 0
    assert told.redis.hkeys(KEYS[1]) == [b"msg_a"]


def test_a_sweep_keeps_the_outbox_within_its_bound(told: Herd) -> None:
    bounded = Herd(told.redis, Ledger(lease_ms=60_000, worker="w", max_outbox=2))
    for number in range(5):
        run_to_the_end(told, f"a{number}")
        told.redis.zadd(KEYS[0], {f"msg_a{number}": number + 1})
    for _ in range(2):  # the second finds as many as there may be
        sweep(bounded)
        assert told.redis.zrange(KEYS[0], 0, -1) == [b"msg_a3", b"msg_a4"]
        assert told.redis.zcard(KEYS[2]) == 2
        assert told.redis.hlen(KEYS[1]) == 4


def test_a_full_outbox_gives_up_what_has_failed_most_before_what_is_new(told: Herd) -> None:
    bounded = Herd(told.redis, Ledger(lease_ms=60_000, worker="w", max_outbox=1))
    for name in ("new", "failed"):
        run_to_the_end(told, name)
    told.redis.zadd(KEYS[0], {"msg_failed": 2**45})
    sweep(bounded)
    assert told.redis.zrange(KEYS[0], 0, -1) == [b"msg_new"]


def test_a_sweep_forgets_what_was_given_up_long_ago(told: Herd) -> None:
    run_to_the_end(told, "a")
    run_call(told.redis, OUTBOX.give_up(run_call(told.redis, OUTBOX.due(1, 1))[0]))
    sweep(told)
    assert told.redis.exists(KEYS[2])
    told.redis.zadd(KEYS[2], {"msg_a": 1})
    sweep(told)
    assert not told.redis.exists(*KEYS)


def test_a_second_life_of_an_id_is_told_though_the_first_was_given_up(told: Herd) -> None:
    run_to_the_end(told, "a")
    run_call(told.redis, OUTBOX.give_up(run_call(told.redis, OUTBOX.due(1, 1))[0]))
    told.redis.delete(told.ledger.job_key("a"), told.ledger.events_key("a"))
    run_to_the_end(told, "a")
    assert not told.redis.exists(KEYS[2])
    assert the_entry(told)[0] == "job.completed"


def test_one_at_a_time_has_the_role(redis: Redis) -> None:
    assert run_call(redis, hold_sender_role("one", 60_000))
    assert not run_call(redis, hold_sender_role("two", 60_000))
    assert run_call(redis, hold_sender_role("one", 60_000))
    assert not run_call(redis, hold_sender_role("two", 0))
    assert run_call(redis, hold_sender_role("one", 0))
    assert run_call(redis, hold_sender_role("two", 60_000))


def test_the_role_passes_on_when_its_time_is_over_or_lies_beyond_a_turn(redis: Redis) -> None:
    for until_ms in (1, 2**45):
        assert run_call(redis, hold_sender_role("one", 60_000))
        redis.hset(SENDER, "until_ms", until_ms)
        assert run_call(redis, hold_sender_role("two", 60_000))
        redis.delete(SENDER)
