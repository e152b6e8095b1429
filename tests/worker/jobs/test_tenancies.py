"""A worker of many tenants: what it costs does not grow with them, and none is in the way of another."""

import threading
from functools import partial
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.message import Envelope, queue_name
from llama_herd.worker import process
from llama_herd.worker.jobs import heartbeat
from llama_herd.worker.jobs.heartbeat import FRESH_S
from llama_herd.worker.jobs.preparer import LONG_S
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import JOB

pytestmark = pytest.mark.redis

MANY = 40


def tenants(num: int) -> str:
    return ",".join(f"t{number}" for number in range(num))


@pytest.fixture
def services(
    redis_url: str, model: LoadedModel, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Makes services around one model, which do not run."""
    monkeypatch.setattr(process, "device", lambda: "cpu")

    def service(num_tenants: int) -> Service:
        update = {"redis_url": redis_url, "tenants": tenants(num_tenants), "lease_ms": 60_000}
        return Service(model, tiny_settings.model_copy(update=update), "worker@test")

    return service


def submit(redis: Redis, ledger: Ledger, job_id: str) -> SentMessage:
    """Submit a job of the ledger's tenant; returns its message."""
    queue = queue_name("tiny", ledger.tenant)
    job = JOB.model_copy(update={"tenant": ledger.tenant})
    run_call(redis, ledger.submit(job_id, job, Envelope.for_job(job_id, queue)))
    return SentMessage(job_id, queue=queue)


def is_done(redis: Redis, ledger: Ledger, job_id: str) -> bool:
    return run_call(redis, ledger.state(job_id)) == "done"


def num_calls(redis: Any) -> int:
    """What clients have asked, but for this."""
    stats = redis.info("commandstats")
    return sum(stats[name]["calls"] for name in stats if name in ("cmdstat_evalsha", "cmdstat_subscribe"))


def a_second_of(service: Service) -> None:
    """What a worker without jobs does in a second."""
    service._heartbeat._beat()
    for act in service._sweeper._acts:
        act()


def test_an_idle_second_takes_as_many_calls_for_many_tenants_as_for_one(redis: Any, services: Any) -> None:
    asked = []
    for num in (1, MANY):
        service = services(num)
        a_second_of(service)  # which loads the scripts
        redis.config_resetstat()
        service._heartbeat.report_soon()
        a_second_of(service)
        asked.append(num_calls(redis))
    assert asked == [4, 4], "a beat, strays, the turns of the sweeps, and lost messages"


def test_a_tenant_without_jobs_here_is_told_of_the_worker_seldom(
    redis: Any, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "IDLE_REPORT_S", 3600.0)
    service = services(2)
    a_second_of(service)
    first, _ = service.tenancies
    first.claims._by_id["job"] = None
    beats = [redis.hget(one.ledger.key("worker:worker@test"), "beat_ms") for one in service.tenancies]
    service._heartbeat._reported_s = {one.tenant: monotonic() - 1 for one in service.tenancies}
    first.claims.in_hand = list
    wait_until(lambda: redis.time()[1] // 1000 != int(beats[0]) % 1000, "another millisecond")
    a_second_of(service)
    again = [redis.hget(one.ledger.key("worker:worker@test"), "beat_ms") for one in service.tenancies]
    assert [before != after for before, after in zip(beats, again, strict=True)] == [True, False]


def test_a_tenant_whose_job_takes_long_to_make_ready_lets_the_others_go_first(
    redis: Redis, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever sends many forms that take a second each holds up everybody, one after the other."""
    service = services(2)
    first, other = (one.ledger for one in service.tenancies)
    begun: list[str] = []
    passes = threading.Semaphore(0)
    sequences = SequenceMaker.sequences

    def held_up(maker: SequenceMaker, job_id: str, *args: Any) -> Any:
        begun.append(job_id)
        passes.acquire()
        return sequences(maker, job_id, *args)

    monkeypatch.setattr(SequenceMaker, "sequences", held_up)
    service.start_engine()
    service.start_threads()
    try:
        for number in range(4):
            service.take(submit(redis, first, f"a{number}"))
        wait_until(lambda: begun, "the first is made ready")
        long_since_s = monotonic() + 2 * LONG_S
        wait_until(lambda: monotonic() > long_since_s, "that takes long")
        service.take(submit(redis, other, "b"))
        passes.release(10)
        wait_until(lambda: is_done(redis, first, "a3") and is_done(redis, other, "b"), "all have ended")
    finally:
        passes.release(10)
        service.drain(0.0, lambda: None)
    assert begun[:2] == ["a0", "b"]


def test_many_tenants_have_the_threads_of_one(redis: Any, services: Any) -> None:
    names = []
    for num in (1, MANY):
        before = set(threading.enumerate())
        service = services(num)
        service.start_engine()
        service.start_threads()
        names.append(sorted(thread.name for thread in set(threading.enumerate()) - before))
        service.drain(0.0, lambda: None)
    assert names[0] == names[1]


def test_jobs_of_many_tenants_with_one_id_end_each_in_its_own(redis: Redis, services: Any) -> None:
    service = services(MANY)
    service.start_engine()
    service.start_threads()
    ledgers = [Ledger(name) for name in tenants(MANY).split(",")]
    for ledger in ledgers:
        service.take(submit(redis, ledger, "same"))
    try:
        for ledger in ledgers:
            wait_until(partial(is_done, redis, ledger, "same"), ledger.tenant)
            events = run_call(redis, ledger.read("same"))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert isinstance(events[-1], End)
            assert redis.zcard(ledger.key("leases")) == 0
    finally:
        service.drain(0.0, lambda: None)


def test_one_tenants_spoilt_leases_leave_the_jobs_of_the_others_alone(redis: Any, services: Any) -> None:
    """All events of a step go in one call, which Redis refuses as a whole."""
    service = services(2)
    spoilt, fine = (one.ledger for one in service.tenancies)
    for ledger in (spoilt, fine):
        service.take(submit(redis, ledger, "job"))
    service.start_engine()
    service._intake._claim(service._intake._take())
    redis.delete(spoilt.key("leases"))
    redis.set(spoilt.key("leases"), "no leases")
    service.start_threads()
    try:
        wait_until(partial(is_done, redis, fine, "job"), "the end of the other tenant's job")
    finally:
        service.drain(0.0, lambda: None)


def test_a_lease_that_an_event_has_just_renewed_is_not_renewed_again(redis: Any, services: Any) -> None:
    service = services(2)
    tenancies = list(service.tenancies)
    attempts = []
    for tenancy in tenancies:
        service.take(submit(redis, tenancy.ledger, "job"))
    service._intake._claim(service._intake._take())
    attempts = service.tenancies.in_hand()
    leases = [tenancy.ledger.job_key("job") for tenancy in tenancies]
    for lease in leases:
        redis.hset(lease, "lease", 1)
    just_now_s = monotonic() + 60  # for as long as the test may take
    attempts[0].emitted_s = just_now_s
    service._heartbeat._renew()
    assert [int(redis.hget(lease, "lease")) > 1 for lease in leases] == [False, True]
    attempts[0].emitted_s = monotonic() - FRESH_S
    service._heartbeat._renew()
    assert int(redis.hget(leases[0], "lease")) > 1
    redis.config_resetstat()
    for attempt in attempts:
        attempt.emitted_s = just_now_s
    service._heartbeat._renew()
    assert num_calls(redis) == 0, "all of them run"


def test_a_cancel_is_told_to_the_owner_alone(redis: Any, services: Any) -> None:
    service, other = services(2), services(2)
    tenancy, _ = service.tenancies
    service.take(submit(redis, tenancy.ledger, "job"))
    service._intake._claim(service._intake._take())
    with redis.pubsub() as mine, redis.pubsub() as others:
        for one, listener in ((service, mine), (other, others)):
            listener.subscribe(*one._heartbeat._by_channel)
            for _ in one._heartbeat._by_channel:
                listener.get_message(timeout=60)
        run_call(redis, tenancy.ledger.cancel("job"))
        service._heartbeat._next_beat_s = monotonic() + 60
        (attempt,) = service.tenancies.in_hand()
        wait_until(lambda: service._heartbeat._hear(mine) or attempt.abort, "the owner hears of it")
        assert others.get_message(timeout=0.0) is None
    assert attempt.abort == "cancelled"
