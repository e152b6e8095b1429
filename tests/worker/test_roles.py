"""A whole job among users of narrow roles: submitted, run, read and looked after, each by its own user."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from llama_herd.errors import NotPermitted, RedisUnavailable
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.answers import DeadLetter
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.ledger.stored_api_keys import API_KEYS
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from llama_herd.tasks.security.rights import Dialect
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.guarded_redis import GuardedRedis, newest_dialect, write_users
from tests.local.processes import ForkedWorker, standstill
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of

pytestmark = [pytest.mark.redis, pytest.mark.worker]

SHORT: dict[str, Any] = {"prompt": "a", "sampling": {"max_tokens": 2}}
LONG: dict[str, Any] = {"prompt": "a", "sampling": {"max_tokens": 4096}}

#: What is refused without harm: redis-py tells its name, a subscriber looks for the record of a job that has
#: said nothing, and for the time, by which the job may be late; a producer tries to load scripts.
EXPECTED = {"client", "hmget", "time", "script"}

ClientOf = Callable[[Role], Client]
TENANTS = ("default", "acme")
DRAIN = ("drain", "resume")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    folder = tmp_path_factory.mktemp("acl")
    for tenant, queue in zip(TENANTS, ("herd.m", "herd.acme:m"), strict=True):
        acl = Acl(tenant, [queue])
        write_users(folder, {f"{tenant}-{role}": acl.rights(role) for role in Role})
    with GuardedRedis(folder) as server:
        yield server


def refused(root: Redis) -> set[str]:
    """Commands that some user was not allowed; Redis 7 names a part of one, as in script|load."""
    log: Any = root.acl_log(1000)
    return {entry["client-info"]["cmd"].partition("|")[0] for entry in log}


def settings_of(server: GuardedRedis, tenant: str, role: Role) -> Settings:
    return Settings.read(redis_url=server.url_of(f"{tenant}-{role}"), tenant=tenant, model_name="m")


@pytest.fixture(scope="module", params=TENANTS)
def tenant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def worker(
    server: GuardedRedis,
    tenant: str,
    endless_settings: WorkerSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ForkedWorker]:
    own = settings_of(server, tenant, Role.WORKER).model_dump()
    folder = tmp_path_factory.mktemp("log")
    settings = WorkerSettings.read(**endless_settings.model_dump() | own)
    slow = standstill(folder, step_s=0.02)
    with ForkedWorker(settings, f"{tenant}@test", folder / "log", **slow) as worker:
        yield worker
    with Redis.from_url(server.url) as root:
        assert refused(root) <= EXPECTED


@pytest.fixture
def client(server: GuardedRedis, tenant: str, worker: ForkedWorker) -> ClientOf:
    return lambda role: Client(settings=settings_of(server, tenant, role))


@pytest.fixture
def celery(server: GuardedRedis, tenant: str, worker: ForkedWorker) -> Callable[[Role], Celery]:
    return lambda role: make_app(settings_of(server, tenant, role))


def test_a_job_goes_from_producer_to_worker_to_subscriber(client: ClientOf) -> None:
    with client(Role.PRODUCER) as producer, client(Role.SUBSCRIBER) as subscriber:
        result = subscriber.result(producer.submit(**SHORT), timeout_s=30)
        assert result.finish_reason == "length"
        events = list(subscriber.stream(result.job, timeout_s=30))
        assert events[-1].type == "end"
        assert list(subscriber.watch(result.job, after=1, timeout_s=30)) == events[1:]


def test_a_producer_sees_where_its_job_stands_and_a_subscriber_does_not(
    client: ClientOf, server: GuardedRedis
) -> None:
    with (
        client(Role.PRODUCER) as producer,
        client(Role.SUBSCRIBER) as subscriber,
        Redis.from_url(server.url) as root,
    ):
        assert refused(root) <= EXPECTED
        job = producer.submit(**SHORT, not_before=2**52)
        assert producer.place(job) is not None
        with pytest.raises(NotPermitted):
            subscriber.place(job)
        with pytest.raises(TimeoutError):
            next(subscriber.watch(job, timeout_s=0.1))
        producer.cancel(job)
        root.acl_log_reset()  # the subscriber was refused, as it should


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.OPERATOR, Role.GATEWAY, Role.WORKER])
def test_who_may_see_a_job_sees_why_it_failed(client: ClientOf, role: Role) -> None:
    with client(Role.PRODUCER) as producer, client(Role.SUBSCRIBER) as subscriber, client(role) as looking:
        job = producer.submit(prompt_ids=[1] * 9999)
        error = subscriber.result(job, timeout_s=30).error
        found = looking.job(job)
    assert (found.state, found.finish_reason, found.error) == ("failed", "error", error)
    assert error is not None
    assert error.code == "prompt_too_long"


def test_a_subscriber_who_comes_back_after_the_end_is_not_kept_waiting(client: ClientOf) -> None:
    """A browser does, by itself, with the number of the last event."""
    with client(Role.PRODUCER) as producer, client(Role.SUBSCRIBER) as subscriber:
        job = producer.submit(**SHORT)
        last = list(subscriber.stream(job, timeout_s=30))[-1]
        assert list(subscriber.stream(job, after=last.seq, timeout_s=30)) == []
        assert list(subscriber.stream(job, after=last.seq - 1, timeout_s=30)) == [last]


def test_a_producer_cancels(client: ClientOf) -> None:
    with client(Role.PRODUCER) as producer, client(Role.SUBSCRIBER) as subscriber:
        job = producer.submit(**LONG)
        next(event for event in subscriber.stream(job, timeout_s=30) if event.type == "token")
        producer.cancel(job)
        assert subscriber.result(job, timeout_s=30).finish_reason == "cancelled"


def test_a_producer_revokes_by_celery(celery: Callable[[Role], Celery], client: ClientOf) -> None:
    with client(Role.PRODUCER) as producer, client(Role.SUBSCRIBER) as subscriber:
        job = producer.submit(**LONG)
        next(event for event in subscriber.stream(job, timeout_s=30) if event.type == "token")
        with celery(Role.PRODUCER) as app:
            app.control.revoke(job)
        assert subscriber.result(job, timeout_s=30).finish_reason == "cancelled"


def test_celery_sends_and_reads_with_the_same_roles(
    celery: Callable[[Role], Celery], client: ClientOf
) -> None:
    with celery(Role.PRODUCER) as app:
        sent = app.send_task(TASK_NAME, kwargs=SHORT, queue=app.conf.task_default_queue)
    with celery(Role.SUBSCRIBER) as app:
        assert app.AsyncResult(sent.id).get(timeout=30)["finish_reason"] == "length"


def test_an_operator_looks_after_jobs(client: ClientOf, server: GuardedRedis, tenant: str) -> None:
    with client(Role.OPERATOR) as operator, client(Role.PRODUCER) as producer:
        assert [worker.state for worker in operator.status().workers] == ["ready"]
        with Redis.from_url(server.url) as root:
            root.lpush(producer._core.queue, b"not a message")
        wait_until(lambda: operator.dead(), "the message is put aside")
        (letter,) = operator.dead()
        assert isinstance(letter, DeadLetter)
        operator.drop(letter.number)
        assert operator.dead() == []
        job = producer.submit(**SHORT)
        operator.result(job, timeout_s=30)
        operator.purge(job)
        assert operator.workers()


def test_an_operator_pauses_and_drains_which_a_producer_sees_and_may_not(
    client: ClientOf, worker: ForkedWorker, server: GuardedRedis
) -> None:
    with (
        client(Role.OPERATOR) as operator,
        client(Role.PRODUCER) as producer,
        Redis.from_url(server.url) as root,
    ):
        assert refused(root) <= EXPECTED
        operator.pause("m")
        operator.drain(worker.name)
        wait_until(lambda: operator.workers()[0].state == "drained", "the worker is drained")
        job = producer.submit(**SHORT)
        if newest_dialect() is Dialect.SELECTORS:
            with pytest.raises(NotPermitted):
                producer.resume("m")
            with pytest.raises(NotPermitted):
                producer.undo_drain(worker.name)
            root.acl_log_reset()
        assert operator.job(job).note.startswith("m is paused")
        assert operator.resume("m")
        assert operator.undo_drain(worker.name)
        assert operator.result(job, timeout_s=30).finish_reason == "length"
        wait_until(lambda: operator.workers()[0].state == "ready", "it tells that it takes jobs again")


@pytest.fixture
def gateway(server: GuardedRedis, tenant: str, worker: ForkedWorker) -> Iterator[GatewayThread]:
    url = server.url_of(f"{tenant}-{Role.GATEWAY}")
    with GatewayThread(url, tenant=tenant, model_name="m") as gateway:
        yield gateway


def test_a_gateway_does_all_that_is_asked_of_it(
    gateway: GatewayThread, server: GuardedRedis, tenant: str
) -> None:
    body = {"model": "m", "prompt": "a", "max_tokens": 2}
    # Another test may have drained the worker, and it reports once a second that this is over.
    wait_until(lambda: gateway.ask("GET", "/health/ready").status == 200, "the worker is ready")
    assert gateway.ask("POST", "/v1/completions", body).status == 200
    assert gateway.ask("POST", "/v1/completions", {**body, "stream": True}).raw.endswith(b"[DONE]\n\n")
    place = "/v1/" + gateway.ask("POST", "/v1/jobs", LONG).headers["location"]
    with gateway.send("GET", f"{place}/events") as answer:
        assert next(event for event in events_of(answer) if event.name == "token")
        found = gateway.ask("GET", "/v1/herd").json
        assert place.endswith(found["jobs"][0]["job_id"])
        assert found["workers"][0]["state"] == "ready"
        assert gateway.ask("DELETE", place).status == 202
        assert [event.name for event in events_of(answer)][-1] == "end"
    for act in ("queues/m/pause", "queues/m/resume", *(f"workers/{tenant}@test/{verb}" for verb in DRAIN)):
        assert gateway.ask("POST", f"/v1/{act}").status == 200
    assert gateway.ask("GET", place).json["state"] == "cancelled"
    assert gateway.ask("POST", f"{place}/purge").status == 204
    waits = "/v1/" + gateway.ask("POST", "/v1/jobs", SHORT | {"not_before": 2**52}).headers["location"]
    assert gateway.ask("GET", waits).json["position"] is not None
    assert gateway.ask("POST", f"{waits}/purge").status == 204
    with Redis.from_url(server.url) as root:
        key = run_dialogue(root, create_key(tenant, tenant, KeyRole.SUBSCRIBER))
        shown = {"Authorization": f"Bearer {key}"}
        for wrong in ({}, {"Authorization": "Bearer herd-wrong"}):
            assert gateway.ask("GET", "/v1/models", headers={"Via": "a proxy", **wrong}).status == 401
        assert gateway.ask("GET", "/v1/models", headers=shown).json["data"][0]["id"] == "m"
        root.delete(API_KEYS)


def test_the_worker_loads_the_scripts_that_a_producer_may_not_load(
    client: ClientOf, server: GuardedRedis, worker: ForkedWorker
) -> None:
    with client(Role.PRODUCER) as producer, Redis.from_url(server.url) as root:
        root.script_flush()

        def is_submitted() -> bool:
            with suppress(RedisUnavailable):
                return bool(producer.submit(**SHORT))
            return False

        wait_until(is_submitted, "the scripts are back")
