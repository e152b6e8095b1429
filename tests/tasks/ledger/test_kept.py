"""How long ended jobs are kept, what they keep of Redis, and that new ones are refused in time."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from redis import Redis

from llama_herd.errors import KeptFull
from llama_herd.tasks import Client
from llama_herd.tasks.ledger.answers import Purge, Submission
from llama_herd.tasks.ledger.overview import Overview, TenantCounts
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End, Failure
from llama_herd.tasks.protocol.message import Envelope
from tests.tasks.herd import JOB, QUEUE, SWEEP, Herd, end, started, sweep, token

pytestmark = pytest.mark.redis

KEPT = "herd:default:kept"
HOUR_S = 3600


def counts(herd: Herd) -> TenantCounts:
    return run_call(herd.redis, Overview().counts(QUEUE))


def size_of(herd: Herd, *job_ids: str) -> int:
    """What Redis says that records and streams of these jobs take."""
    keys = [key for one in job_ids for key in (herd.ledger.job_key(one), herd.ledger.events_key(one))]
    return sum(herd.redis.memory_usage(key, samples=0) or 0 for key in keys)


def end_here(herd: Herd, job_id: str) -> None:
    herd.claim(job_id)
    assert herd.kinds("one", started(job_id), token(job_id, 2, 0), end(job_id, 3, 1)) == ["ok"] * 3


def fail(herd: Herd, job_id: str) -> None:
    herd.claim(job_id)
    failure = Failure(code="model_error", message="the device was lost", retriable=True)
    event = End(seq=1, job=job_id, epoch=1, finish_reason="error", n=0, attempts=1, error=failure)
    assert herd.kinds(
        "one", token(job_id, 1, 0)._replace(kind="end", state="failed", num_ids=0, event=event.to_json())
    ) == ["ok"]


def cancel(herd: Herd, job_id: str) -> None:
    run_call(herd.redis, herd.ledger.cancel(job_id))


def poison(herd: Herd, job_id: str) -> None:
    herd.redis.hset(herd.ledger.job_key(job_id), "deaths", 3)
    herd.claim(job_id)


def end_by_sweep(herd: Herd, job_id: str) -> None:
    herd.redis.hset(herd.ledger.job_key(job_id), "deadline_ms", 1)
    herd.redis.zadd("herd:default:pending:deadlines", {job_id: 1})
    herd.redis.delete(SWEEP)
    sweep(herd)


ENDS: list[Callable[[Herd, str], None]] = [end_here, fail, cancel, poison, end_by_sweep]


def lives(herd: Herd, job_id: str) -> set[int]:
    return {herd.redis.ttl(herd.ledger.job_key(job_id)), herd.redis.ttl(herd.ledger.events_key(job_id))}


@pytest.mark.parametrize(
    ("ends", "keep_s", "life_s"),
    [
        (end_here, None, HOUR_S),
        (end_here, 60, 60),
        (end_here, 172_800, 172_800),
        (cancel, None, HOUR_S),
        (cancel, 60, 60),
        (fail, None, 24 * HOUR_S),
        (fail, 60, 24 * HOUR_S),
        (fail, 172_800, 172_800),
        (end_by_sweep, None, 24 * HOUR_S),
        (poison, 60, 7 * 24 * HOUR_S),
    ],
)
def test_a_job_is_kept_as_long_as_it_asks_for_and_a_failed_one_for_a_day_at_least(
    herd: Herd, ends: Callable[[Herd, str], None], keep_s: int | None, life_s: int
) -> None:
    herd.submit("a", JOB.model_copy(update={"keep_s": keep_s}))
    ends(herd, "a")
    assert all(life_s - 2 <= left <= life_s for left in lives(herd, "a"))


def test_a_bare_message_says_how_long_its_job_is_kept(herd: Herd) -> None:
    job = JOB.model_copy(update={"keep_s": 500})
    ask = herd.ledger.claim("a", "one", queue=QUEUE, job=job, envelope=Envelope.for_job("a", QUEUE))
    run_call(herd.redis, ask)
    assert herd.kinds("one", end("a", 1, 0)) == ["ok"]
    assert all(498 <= left <= 500 for left in lives(herd, "a"))


@pytest.mark.parametrize("ends", ENDS)
def test_what_an_ended_job_keeps_is_counted_and_a_purge_takes_it_back(
    herd: Herd, ends: Callable[[Herd, str], None]
) -> None:
    for job_id in ("a", "b"):
        herd.submit(job_id)
        ends(herd, job_id)
    # The note of it in the record is younger than the count.
    assert 0 <= size_of(herd, "a", "b") - counts(herd).kept_bytes <= 2 * 256
    run_call(herd.redis, herd.ledger.purge("a"))
    assert 0 <= size_of(herd, "b") - counts(herd).kept_bytes <= 256
    run_call(herd.redis, herd.ledger.purge("b"))
    run_call(herd.redis, herd.ledger.purge("b"))
    assert counts(herd).kept_bytes == 0


def test_the_result_of_celery_counts_until_it_is_gone_itself(herd: Herd) -> None:
    herd.submit("a")
    end_here(herd, "a")
    before = counts(herd).kept_bytes
    herd.redis.set(herd.ledger.result_key("a"), "x" * 5000, ex=24 * HOUR_S)
    run_call(herd.redis, herd.ledger.settle("a"))
    assert 5000 < counts(herd).kept_bytes - before < 7000
    let_hours_pass(herd, 3)
    assert 5000 < counts(herd).kept_bytes < 7000
    run_call(herd.redis, herd.ledger.purge("a"))
    assert counts(herd).kept_bytes == 0


def test_a_result_that_is_noted_twice_counts_once(herd: Herd) -> None:
    """The answer of the first call was lost."""
    herd.submit("a")
    end_here(herd, "a")
    herd.redis.set(herd.ledger.result_key("a"), "x" * 5000, ex=24 * HOUR_S)
    run_call(herd.redis, herd.ledger.settle("a"))
    before = counts(herd).kept_bytes
    run_call(herd.redis, herd.ledger.settle("a"))
    assert counts(herd).kept_bytes == before
    run_call(herd.redis, herd.ledger.purge("a"))
    assert counts(herd).kept_bytes == 0


def let_hours_pass(herd: Herd, num: int) -> None:
    """Let all that is counted have been counted so much earlier."""
    for field, value in sorted(herd.redis.hgetall(KEPT).items()):  # into hours that have moved already
        if field == b"from":
            herd.redis.hset(KEPT, "from", int(value) - num)
        elif field.isdigit():
            herd.redis.hdel(KEPT, field)
            herd.redis.hincrby(KEPT, int(field) - num, int(value))
    for key in herd.redis.scan_iter("*:job"):
        for name in ("kept", "kept_result"):
            if noted := herd.redis.hget(key, name):
                hour, num_bytes = noted.split(b"/")
                herd.redis.hset(key, name, b"%d/%s" % (int(hour) - num, num_bytes))


def test_what_has_expired_counts_no_more_and_what_lives_on_does(herd: Herd) -> None:
    for job_id, keep_s in (("a", None), ("b", 10 * HOUR_S), ("c", 90 * 24 * HOUR_S)):
        herd.submit(job_id, JOB.model_copy(update={"keep_s": keep_s}))
        end_here(herd, job_id)
    each = counts(herd).kept_bytes / 3
    for hours, left in ((2, 2), (6, 2), (4, 1), (24 * 91, 0)):
        let_hours_pass(herd, hours)
        for _ in range(hours // 700):  # an end takes away some weeks at once
            herd.submit("d")
            end_here(herd, "d")
            run_call(herd.redis, herd.ledger.purge("d"))
            herd.redis.delete(herd.ledger.job_key("d"))
        assert counts(herd).kept_bytes == pytest.approx(left * each, abs=300)
    assert set(herd.redis.hkeys(KEPT)) == {b"bytes", b"from"}


@pytest.mark.parametrize("first", ["-inf", "-1e17", "0", "nan", "inf", "1e308", "soon", ""])
def test_no_first_hour_that_somebody_has_written_holds_up_redis(herd: Herd, first: str) -> None:
    """A script that counts hours from one at which one more is the same would never end."""
    herd.redis.hset(KEPT, mapping={"from": first, "limit": 10**6})
    herd.redis.config_resetstat()
    herd.submit("a")
    end_here(herd, "a")
    assert 0 < counts(herd).kept_bytes < 10**6
    assert herd.redis.info("commandstats")["cmdstat_hmget"]["calls"] < 10_000


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=strategies.lists(
        strategies.tuples(
            strategies.integers(0, 4),
            strategies.booleans(),
            strategies.sampled_from([None, 60, 10**5, 10**7]),
        ),
        max_size=12,
    )
)
def test_the_sum_of_all_hours_is_the_whole(herd: Herd, steps: list[tuple[int, bool, int | None]]) -> None:
    herd.redis.flushdb()
    for number, (which, purges, keep_s) in enumerate(steps):
        herd.submit(str(number), JOB.model_copy(update={"keep_s": keep_s}))
        ENDS[which](herd, str(number))
        if purges:
            run_call(herd.redis, herd.ledger.purge(str(number)))
        if which == 2:
            let_hours_pass(herd, 1)
        fields = {name: int(value) for name, value in herd.redis.hgetall(KEPT).items()}
        hours = {name: value for name, value in fields.items() if name.isdigit()}
        assert sum(hours.values()) == fields[b"bytes"]
        assert all(value > 0 for value in hours.values())


def test_beyond_the_limit_new_jobs_are_refused_with_the_figures_and_nothing_is_dropped(
    herd: Herd, redis_url: str
) -> None:
    herd.submit("a")
    herd.submit("waits")
    end_here(herd, "a")
    herd.redis.hset(KEPT, "limit", 100)
    keys = set(herd.redis.keys())
    with Client(redis_url, model="tales") as client:
        with pytest.raises(KeptFull, match=r"keep [\d,]+ bytes of Redis, and the limit is 100,") as caught:
            client.submit(prompt="x", job_id="b")
        outcomes = list(client.submit_many([{"prompt": "x", "job_id": "c"}, {"prompt": "x"}]))
        assert client.result("a").finish_reason == "stop"
    assert caught.value.num_bytes == counts(herd).kept_bytes >= caught.value.limit == 100
    assert all(isinstance(one.error, KeptFull) for one in outcomes)
    assert set(herd.redis.keys()) == keys
    # What was accepted before goes on, and the same call of it is still the same job.
    again = run_call(herd.redis, herd.ledger.submit("waits", JOB, Envelope.for_job("waits", QUEUE)))
    assert again.kind is Submission.EXISTS
    end_here(herd, "waits")
    run_call(herd.redis, herd.ledger.purge("a"))
    run_call(herd.redis, herd.ledger.purge("waits"))
    herd.submit("b")
    assert herd.field("b", "state") == "queued"


def test_a_job_whose_result_is_owed_counts_for_as_long_as_it_is_kept(herd: Herd) -> None:
    herd.submit("a")
    end_here(herd, "a")
    before = counts(herd).kept_bytes
    run_call(herd.redis, herd.ledger.owe("a", 0, has_sent_links=True))
    let_hours_pass(herd, 3)
    assert counts(herd).kept_bytes == pytest.approx(before, abs=200)
    run_call(herd.redis, herd.ledger.settle("a", is_elsewhere=True))
    let_hours_pass(herd, 3)
    assert counts(herd).kept_bytes == 0


@pytest.mark.parametrize("keep_s", [60, 30 * 24 * HOUR_S])
def test_a_debt_lets_a_job_live_longer_and_never_shorter(herd: Herd, keep_s: int) -> None:
    herd.submit("a", JOB.model_copy(update={"keep_s": keep_s}))
    end_here(herd, "a")
    for _ in range(2):
        run_call(herd.redis, herd.ledger.owe("a", 0, has_sent_links=True))
        owed_s = max(keep_s, herd.ledger.dead_ttl_s)
        assert all(owed_s - 5 <= left <= owed_s for left in lives(herd, "a"))
    run_call(herd.redis, herd.ledger.settle("a", is_elsewhere=True))
    assert all(keep_s - 5 <= left <= keep_s for left in lives(herd, "a"))


@pytest.mark.parametrize("spoilt", ["text", "fields"])
def test_spoilt_counts_hold_up_no_end_and_no_job(herd: Herd, spoilt: str) -> None:
    for job_id in ("early", "a"):
        herd.submit(job_id)
    end_here(herd, "early")
    settle_with_result(herd, "early")
    herd.redis.delete(KEPT)
    if spoilt == "text":
        herd.redis.set(KEPT, "nothing of ours")
    else:
        hours = [herd.field("early", name).partition("/")[0] for name in ("kept", "kept_result")]
        herd.redis.hset(KEPT, mapping=dict.fromkeys(("bytes", "limit", "from", *hours), "x"))
    end_here(herd, "a")
    for job_id in ("a", "early"):
        settle_with_result(herd, job_id)
        assert run_call(herd.redis, herd.ledger.purge(job_id)) is Purge.PURGED
    herd.submit("b")
    assert herd.field("b", "state") == "queued"


def settle_with_result(herd: Herd, job_id: str) -> None:
    herd.redis.set(herd.ledger.result_key(job_id), "x" * 5000, ex=24 * HOUR_S)
    run_call(herd.redis, herd.ledger.settle(job_id))


def test_where_redis_does_not_tell_what_a_key_takes_jobs_end_and_count(herd: Herd, redis_url: str) -> None:
    herd.redis.acl_setuser(
        "managed", enabled=True, nopass=True, keys="*", channels="*", commands=["+@all", "-memory"]
    )
    herd.submit("a")
    with Redis.from_url(redis_url.replace("//", "//managed:x@")) as redis:
        end_here(replace(herd, redis=redis), "a")
    assert herd.field("a", "state") == "done"
    assert counts(herd).kept_bytes == 2 * 2048, "for its record and its stream"


def test_jobs_of_submit_many_outlive_a_weekend(herd: Herd, redis_url: str) -> None:
    with Client(redis_url, model="tales") as client:
        list(
            client.submit_many([{"prompt": "x", "job_id": "a"}, {"prompt": "x", "job_id": "b", "keep_s": 60}])
        )
        client.submit(prompt="x", job_id="c")
    assert [herd.redis.hget(herd.ledger.job_key(one), "keep_s") for one in "abc"] == [b"345600", b"60", None]
    for job_id in "abc":
        end_here(herd, job_id)
    assert [round(max(lives(herd, one)), -1) for one in "abc"] == [345_600, 60, HOUR_S]


def test_a_result_lives_as_long_as_the_job_asks_for(herd: Herd) -> None:
    ledger = replace(herd.ledger, result_ttl_s=1000, failed_ttl_s=2000)
    for job_id, ends, keep_s, life_s in (
        ("a", end_here, None, None),
        ("b", end_here, 60, 60),
        ("c", fail, None, 2000),
        ("d", fail, 60, 2000),
        ("e", fail, 5000, 5000),
        ("f", end_by_sweep, 60, 2000),  # by its deadline
    ):
        herd.submit(job_id, JOB.model_copy(update={"keep_s": keep_s}))
        ends(herd, job_id)
        turn = run_call(herd.redis, ledger.settling(job_id, "one", 1000))
        with Client(herd_url(herd), model="tales") as client:
            assert ledger.result_life_s(turn.keep_s, client.result(job_id)) == life_s  # type: ignore[union-attr]


def herd_url(herd: Herd) -> str:
    where = herd.redis.connection_pool.connection_kwargs
    return f"redis://{where['host']}:{where['port']}/0"
