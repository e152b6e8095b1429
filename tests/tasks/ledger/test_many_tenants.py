"""One call for jobs of several tenants: each is answered as if alone, whatever the keys of others hold."""

from typing import Any

import pytest

from llama_herd.tasks.client.lots import MAX_CALL_JOBS
from llama_herd.tasks.client.readers import LOT
from llama_herd.tasks.ledger import held_jobs, reports
from llama_herd.tasks.ledger.answers import Emission, Renewal, Yours
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.held_jobs import MAX_ENTRIES, EmitEntry, HeldJob, TenantEntry
from llama_herd.tasks.ledger.job_lists import MAX_LOOKS, Cursor, JobLists
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.overview import Overview
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call
from llama_herd.tasks.ledger.reports import (
    MAX_ASKED,
    MAX_BEATS,
    WORKER_TTL_S,
    Beat,
    BeatAnswer,
    Reports,
    beat,
)
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.ledger.sweep import due_for_sweep, sweep_tenant
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope, queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import MAX_MODELS
from llama_herd.worker.jobs.sweeper import MAX_TURNS
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.herd import end, started, token

pytestmark = pytest.mark.redis

OWNER = "one"
ACME, GLOBEX = Ledger("acme", lease_ms=60_000), Ledger("globex", lease_ms=60_000)
BOTH = (ACME, GLOBEX)


def claim(redis: Any, ledger: Ledger, job_id: str = "same") -> HeldJob:
    """A job that a worker has in hand. Two tenants may use the same id."""
    job = GenerationJob(prompt="a tale", model="m")
    run_call(redis, ledger.submit(job_id, job, Envelope.for_job(job_id, queue_name("m", ledger.tenant))))
    answer = run_call(redis, ledger.claim(job_id, OWNER))
    assert isinstance(answer, Yours)
    return HeldJob(ledger, job_id, answer.epoch)


def status(name: str, **fields: object) -> WorkerStatus:
    plain = {"state": "ready", "model": "m", "device": "cpu", "slots": 4}
    return WorkerStatus.model_validate({"name": name, **plain, **fields})


def free_elsewhere(redis: Any, *ledgers: Ledger) -> list[int]:
    """What a full worker hears."""
    beats = [Beat(one, status("full", running=4, waiting=1)) for one in ledgers]
    return [answer.num_free for answer in run_call(redis, beat(beats))]


def test_the_events_of_two_jobs_of_one_id_go_each_to_its_tenant(redis: Any) -> None:
    for ledger in BOTH:
        claim(redis, ledger)
    first = [TenantEntry(ACME, started("same")), TenantEntry(GLOBEX, started("same"))]
    rest = [TenantEntry(GLOBEX, token("same", 2, 0)), TenantEntry(ACME, end("same", 2, 0))]
    answers = run_call(redis, held_jobs.emit(OWNER, first + rest, ACME))
    assert [answer.kind for answer in answers] == [Emission.OK] * 4
    assert [event.type for event in run_call(redis, ACME.read("same"))] == ["started", "end"]
    assert [event.type for event in run_call(redis, GLOBEX.read("same"))] == ["started", "token"]
    assert redis.zrange(ACME.key("leases"), 0, -1) == []
    assert redis.zrange(GLOBEX.key("leases"), 0, -1) == [b"same"]


def test_a_refusal_of_one_tenants_job_is_none_of_the_others_job_of_that_id(redis: Any) -> None:
    for ledger in BOTH:
        claim(redis, ledger)
    entries = [
        TenantEntry(ledger, entry) for ledger in BOTH for entry in (started("same"), token("same", 2, 0))
    ]
    entries[0] = TenantEntry(ACME, token("same", 2, 0))
    answers = run_call(redis, held_jobs.emit(OWNER, entries, ACME))
    assert [answer.kind for answer in answers] == [Emission.GAP, Emission.GAP, Emission.OK, Emission.OK]


def test_events_reach_who_listens_to_their_tenant_alone(redis: Any) -> None:
    for ledger in BOTH:
        claim(redis, ledger)
    with redis.pubsub() as listener:
        listener.psubscribe("*")
        listener.get_message(timeout=PATIENCE_S)
        run_call(redis, held_jobs.emit(OWNER, [TenantEntry(one, started("same")) for one in BOTH], ACME))
        channels = [listener.get_message(timeout=PATIENCE_S)["channel"].decode() for _ in BOTH]
    assert channels == [one.channel("same") for one in BOTH]


@pytest.mark.parametrize("last", [token("same", 2, 0), end("same", 2, 0)], ids=["token", "end"])
def test_a_tenant_whose_leases_are_spoilt_is_answered_so_alone(redis: Any, last: EmitEntry) -> None:
    for ledger in BOTH:
        claim(redis, ledger)
    redis.delete(ACME.key("leases"))
    redis.set(ACME.key("leases"), "no leases")
    entries = [TenantEntry(ledger, entry) for ledger in BOTH for entry in (started("same"), last)]
    answers = run_call(redis, held_jobs.emit(OWNER, entries, ACME))
    assert [answer.kind for answer in answers[2:]] == [Emission.OK] * 2
    assert answers[1].kind is Emission.ERROR
    assert "WRONGTYPE" in answers[1].reason


def test_all_leases_are_renewed_by_one_call_but_those_of_a_tenant_whose_key_is_spoilt(redis: Any) -> None:
    held = [claim(redis, ledger, job_id) for ledger in BOTH for job_id in ("a", "b")]
    run_call(redis, GLOBEX.cancel("b"))
    for one in held:
        redis.hset(one.keys.job_key(one.job_id), "lease", 1)
    redis.delete(ACME.key("leases"))
    redis.set(ACME.key("leases"), "no leases")
    call = held_jobs.renew(OWNER, [*held, HeldJob(GLOBEX, "a", 7), HeldJob(GLOBEX, "none", 1)], ACME)
    kinds = [answer.kind for answer in run_call(redis, call)]
    assert kinds[:2] == [Renewal.ERROR] * 2
    assert kinds[2:] == [Renewal.OK, Renewal.CANCELLED, Renewal.FENCED, Renewal.FENCED]
    assert int(redis.hget(GLOBEX.job_key("a"), "lease")) > 1


def test_a_tenant_with_nothing_to_sweep_is_not_swept_and_no_gap_is_seen_later(redis: Any) -> None:
    run_call(redis, ACME.submit("a", GenerationJob(prompt="a tale"), Envelope.for_job("a", "herd.acme:m")))
    assert run_call(redis, due_for_sweep(BOTH)) == [True, False]
    assert run_call(redis, sweep_tenant(ACME)).held, "nobody has swept for long: live owners get time"
    assert run_call(redis, due_for_sweep(BOTH)) == [False, False], "both were swept just now"
    now_s = redis.time()[0]
    for ledger in BOTH:
        assert int(redis.hget(ledger.key("sweep"), "last")) >= 1000 * (now_s - 5)
    run_call(
        redis, GLOBEX.submit("b", GenerationJob(prompt="a tale"), Envelope.for_job("b", "herd.globex:m"))
    )
    redis.hincrby(GLOBEX.key("sweep"), "last", -11_000)
    assert run_call(redis, due_for_sweep(BOTH)) == [False, True]
    assert not run_call(redis, sweep_tenant(GLOBEX)).held


@pytest.mark.parametrize("name", ["pending", "delayed", "leases", "waiting", "dead", "outbox", "outbox:dead"])
def test_whatever_there_is_to_sweep_is_swept(redis: Any, name: str) -> None:
    assert run_call(redis, due_for_sweep([ACME])) == [False]
    redis.hset(ACME.key("sweep"), "last", 1)
    redis.set(ACME.key(name), "anything")
    assert run_call(redis, due_for_sweep([ACME])) == [True]


def test_a_spoilt_sweep_is_left_to_the_sweep_to_complain_of(redis: Any) -> None:
    redis.set(ACME.key("sweep"), "no times")
    assert run_call(redis, due_for_sweep(BOTH)) == [True, False]


def test_a_worker_reports_to_all_its_tenants_what_each_may_see(redis: Any) -> None:
    reports = [status("w", tokens_per_s=number, left_out=one.tenant) for number, one in enumerate(BOTH)]
    answers = run_call(redis, beat([Beat(one, told) for one, told in zip(BOTH, reports, strict=True)]))
    assert answers == [BeatAnswer(0, False, False)] * 2
    for number, ledger in enumerate(BOTH):
        (seen,) = run_call(redis, Reports(ledger.tenant).workers())
        assert (seen.tokens_per_s, seen.left_out, seen.slots) == (number, ledger.tenant, 4)
        assert redis.zrange(ledger.key("served"), 0, -1) == [f"herd.{ledger.tenant}:m".encode()]
        assert 0 < redis.ttl(ledger.key("worker:w")) <= WORKER_TTL_S


def test_a_report_tells_who_wrote_the_last_one_and_writes_what_ended_jobs_may_keep(redis: Any) -> None:
    def told(process: str, *kept_limits: int | None) -> list[str | None]:
        own = status("w").model_copy(update={"process": process})
        beats = [Beat(one, own, kept_limit=limit) for one, limit in zip(BOTH, kept_limits, strict=True)]
        return [one.author for one in run_call(redis, beat(beats))]

    def limits() -> list[bytes | None]:
        return [redis.hget(one.key("kept"), "limit") for one in BOTH]

    assert (told("a", 500, None), limits()) == ([None, None], [b"500", None])
    assert (told("", None, 700), limits()) == (["a", "a"], [b"500", b"700"])
    assert (told("b", 0, 0), limits()) == (["", ""], [None, None])


def test_a_tenant_whose_key_is_spoilt_hears_of_no_worker_and_the_others_do(redis: Any) -> None:
    redis.set(ACME.key("workers"), "no workers")
    spoilt, fine = run_call(redis, beat([Beat(one, status("w")) for one in BOTH]))
    assert "WRONGTYPE" in spoilt.complaint
    assert fine == BeatAnswer(0, False, False)
    assert [one.name for one in run_call(redis, Reports("globex").workers())] == ["w"]


def test_free_rows_are_those_of_live_workers_of_the_same_queue(redis: Any) -> None:
    for told in (
        *(
            status("idle"),
            status("half", running=2),
            status("full too", running=4),
            status("waits", waiting=1),
        ),
        *(status("stops", state="stopping"), status("other", model="n"), status("late")),
    ):
        run_call(redis, beat([Beat(ACME, told)]))
    redis.zadd(ACME.key("room:herd.acme:m"), {"late": 1.5})  # it has fallen silent
    assert free_elsewhere(redis, ACME, GLOBEX) == [4 + 2, 0]
    assert redis.zscore(ACME.key("room:herd.acme:m"), "late") is None
    (answer,) = run_call(redis, beat([Beat(ACME, status("idle"))]))
    assert answer.num_others == 4, "half, full, full too, waits: others that read the queue"
    for told in (status("idle", running=4), status("half", running=3)):
        run_call(redis, beat([Beat(ACME, told)]))
    assert free_elsewhere(redis, ACME) == [1]


def test_a_worker_that_stops_has_no_free_rows_any_more(redis: Any) -> None:
    for state in ("ready", "stopping"):
        run_call(redis, beat([Beat(one, status("w", state=state)) for one in BOTH]))
        assert free_elsewhere(redis, *BOTH) == [4 if state == "ready" else 0] * 2


def test_of_a_silent_worker_nothing_is_left(redis: Any) -> None:
    """Its report and the room of its queue expire together; its name goes with the next report of another."""
    redis.zadd(ACME.key("workers"), {"silent": 1})
    run_call(redis, beat([Beat(ACME, status("w"))]))
    with redis.pipeline() as now:
        now.time().zrange(ACME.key("workers"), 0, -1, withscores=True)
        (seconds, micros), names, *lives_ms = (
            now.pttl(ACME.key("worker:w")).pttl(ACME.key("room:herd.acme:m")).execute()
        )
    [(name, expires_ms)] = names
    assert name == b"w"
    for life_ms in (expires_ms - 1000 * seconds - micros / 1000, *lives_ms):
        assert life_ms == pytest.approx(lives_ms[0], abs=20)
    assert 0 < lives_ms[0] <= 1000 * WORKER_TTL_S


@pytest.mark.long
def test_a_worker_that_comes_back_with_another_model_has_no_room_for_the_first_one(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "WORKER_TTL_S", 1)
    run_call(redis, beat([Beat(ACME, status("w"))]))

    def has_only_the_others() -> bool:
        run_call(redis, beat([Beat(ACME, status("w", model="n"))]))
        run_call(redis, beat([Beat(ACME, status("x", running=3))]))
        return free_elsewhere(redis, ACME) == [1]

    wait_until(has_only_the_others, "its room is forgotten")


@pytest.mark.parametrize("num_workers", [MAX_ASKED + 1, 2 * MAX_ASKED])
def test_what_a_worker_hears_costs_the_same_however_many_workers_there_are(
    redis: Any, num_workers: int
) -> None:
    for number in range(num_workers):
        run_call(redis, beat([Beat(ACME, status(f"w{number}"))]))
    redis.config_resetstat()
    (free,) = free_elsewhere(redis, ACME)
    # In a new second its own report is the newest, and takes one of the places.
    assert free in (4 * MAX_ASKED, 4 * (MAX_ASKED - 1)), "no more are counted"
    calls = sum(stats["calls"] for stats in redis.info("commandstats").values())
    assert calls < 40


def test_no_call_takes_more_arguments_than_managed_redis_does() -> None:
    """However many jobs and tenants there are: the callers send as many calls as it takes."""
    ledgers = [Ledger(f"tenant-{number}") for number in range(max(MAX_TURNS, MAX_ENTRIES))]
    held = [HeldJob(ledgers[n], "a", 1) for n in range(MAX_ENTRIES)]
    entries = [TenantEntry(one.keys, token("a", 2, 0)) for one in held]
    beats = [Beat(one, status("w", left_out=one.tenant)) for one in ledgers[:MAX_BEATS]]
    job, models = GenerationJob(prompt="a tale"), tuple(f"model-{number}" for number in range(MAX_MODELS))
    parcels = [
        ACME.submit_item("a", job, Envelope.for_job("a", f"herd.acme:m{n}")) for n in range(MAX_CALL_JOBS)
    ]
    calls: list[RedisCall[Any]] = [
        *(held_jobs.emit(OWNER, entries, ACME), held_jobs.renew(OWNER, held, ACME)),
        *(held_jobs.prepare(OWNER, held), due_for_sweep(ledgers[:MAX_TURNS]), beat(beats)),
        *(
            ACME.submit_many(parcels),
            ACME.places(["a"] * LOT),
            ACME.jobs_with_news({f"{n}": 0 for n in range(LOT)}),
        ),
        *(sweep_tenant(Ledger(standing_models=models)), Overview().counts("mine", *models)),
        JobLists().rows("pending", [Cursor("a", "1")] * MAX_LOOKS, "", None, 1),
    ]
    assert max(len(call.command) for call in calls) < 3_999


def test_no_script_asks_for_more_keys_than_managed_redis_takes(redis: Any) -> None:
    """However long the list is that names them."""
    far_ms = 1000 * redis.time()[0] + 5_000
    names = {f"name-{number}": far_ms for number in range(5_000)}
    for index in ("workers", "batches", "quarantine"):
        redis.zadd(ACME.key(index), names)
    reporting, letters = Reports("acme"), DeadLetters("acme")
    calls: list[RedisCall[Any]] = [reporting.workers(), reporting.batches(), letters.jobs(5_000)]
    for call in calls:
        assert isinstance(call.what, Script)
        asked: Any = redis.eval(call.what.source, len(call.keys), *call.keys, *call.args)
        assert call.asks_for_keys(asked)
        assert 500 < len(call.declaring(asked[1:]).command) < 3_999
