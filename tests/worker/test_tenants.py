"""One worker for three tenants: what holds for the jobs of one holds for those of each."""

import gc
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.answers import DeadLetter
from llama_herd.tasks.ledger.keys import Keys, joint_tenant
from llama_herd.tasks.protocol.events import Started
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import NUM_LOOK_AHEAD
from tests.guarded_redis import GuardedRedis, write_users
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

ACME, GLOBEX, _ = TENANTS = ("acme", "globex", "initech")
SLOTS = len(TENANTS)
SHORT: SamplingFields = {"max_tokens": 12}
ENDLESS: SamplingFields = {"max_tokens": 4096}
#: How long each step lasts at least: an endless job is to be there as long as a test needs it.
STEP_S = 0.005


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    """With a user for a worker of all, and none for a worker of one."""
    folder = tmp_path_factory.mktemp("acl")
    acls = [Acl(tenant, [queue_name("m", tenant)]) for tenant in TENANTS]
    write_users(folder, {"worker": Acl.rights_in(acls, Role.WORKER)})
    with GuardedRedis(folder) as server:
        yield server
        gc.collect()  # Celery's results unsubscribe when they are freed, which would wait later


@pytest.fixture(scope="module")
def root(server: GuardedRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url) as redis:
        yield redis


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "m.gguf", eos=False, context_length=8192)


@pytest.fixture(scope="module", autouse=True)
def worker(server: GuardedRedis, model: Path, root: Redis) -> Iterator[WorkerProcess]:
    tenants, log_path = ",".join(TENANTS), model.with_name("log")
    slow: dict[str, Any] = {"held_by": model.parent, "step_s": STEP_S}
    with WorkerProcess(
        server.url_of("worker"), model, "all", log_path, slots=SLOTS, grace_s=0.2, tenants=tenants, **slow
    ) as worker:
        yield worker
    log: Any = root.acl_log(100)
    # Refused without harm: redis-py tells its name, and a worker asks whether Redis evicts keys.
    assert {entry["client-info"]["cmd"].split("|")[0] for entry in log} <= {"client", "info"}


@pytest.fixture(scope="module")
def clients(server: GuardedRedis) -> Iterator[dict[str, Client]]:
    with ExitStack() as stack:
        yield {
            tenant: stack.enter_context(Client(server.url, tenant=tenant, model="m")) for tenant in TENANTS
        }


@pytest.fixture(scope="module")
def globex(clients: dict[str, Client]) -> Client:
    return clients[GLOBEX]


@pytest.fixture(scope="module")
def celery_app(server: GuardedRedis) -> Celery:
    """Of the second tenant."""
    return make_app(Settings(redis_url=server.url, tenant=GLOBEX, model_name="m"))


def has_ended(root: Redis, result_key: str) -> bool:
    """Whether Celery's result is there and is not that of a job that runs."""
    stored: Any = root.get(result_key)
    return stored is not None and json.loads(stored)["status"] != "STARTED"


def test_the_same_id_in_two_tenants_is_two_jobs(clients: dict[str, Client], root: Redis) -> None:
    """Several outputs share the prompt's pages with those of their own job alone."""
    for tenant, client in clients.items():
        client.submit(prompt=f"a tale of {tenant} " * 20, sampling=SHORT | {"n": 2}, job_id="same")
    for tenant, client in clients.items():
        alone = client.result(client.submit(prompt=f"a tale of {tenant} " * 20, sampling=SHORT | {"n": 2}))
        result = client.result("same", timeout_s=PATIENCE_S)
        assert result.finish_reason == alone.finish_reason == "length"
        wait_until(partial(has_ended, root, Keys(tenant).result_key("same")), "the result is stored")
        stored = json.loads(root.get(Keys(tenant).result_key("same")))  # type: ignore[arg-type]
        assert stored["result"] == result.model_dump(mode="json")
        assert stored["status"] == "SUCCESS"


@pytest.mark.parametrize(
    ("num_long", "num_tokens", "num_short"),
    [(50, 200, 20), pytest.param(80, 400, 50, marks=pytest.mark.slow)],
)
def test_a_flood_of_long_jobs_holds_the_others_up_by_a_few_of_them_alone(
    clients: dict[str, Client], root: Redis, model: Path, num_long: int, num_tokens: int, num_short: int
) -> None:
    """The short ones get half of the rows, though they are many times as many jobs."""
    flooding, *others = clients.values()
    with root.pubsub(ignore_subscribe_messages=True) as heard:  # type: ignore[no-untyped-call]
        heard.psubscribe("herd:*:tokens:*")
        long: SamplingFields = {"max_tokens": num_tokens}
        with held(model.parent, num_tokens=1):  # no job ends before all are there
            flood = [flooding.submit(prompt="a flood", sampling=long) for _ in range(num_long)]
            drops = {
                client.submit(prompt="a drop", sampling=SHORT) for _ in range(num_short) for client in others
            }
            root.publish("herd:mark:tokens:x", json.dumps({"type": "mark"}))
        events = (json.loads(message["data"]) for message in heard.listen())
        begun, early, all_are_there = set[str](), set[str](), False
        while not drops <= begun:
            event = next(events)
            all_are_there |= event["type"] == "mark"
            if event["type"] == "started":
                (begun if all_are_there or event["job"] in drops else early).add(event["job"])
    # What the worker has in hand, and some let in while no drop was at hand; in turn it would be each third.
    assert len(begun - drops) <= SLOTS + NUM_LOOK_AHEAD + len(drops) // 5
    assert len({*flood} - begun - early) > 20, "the flood was over before it was one"
    for job_id in flood:
        flooding.cancel(job_id)


def test_a_bare_message_runs_in_the_tenant_of_its_queue_and_links_lead_there(
    globex: Client, celery_app: Celery, root: Redis
) -> None:
    linked = celery_app.signature(
        TASK_NAME, kwargs={"prompt": "more", "sampling": SHORT}, immutable=True, task_id="linked"
    )
    sent = celery_app.send_task(
        TASK_NAME,
        kwargs={"prompt": "a tale", "sampling": SHORT},
        queue=queue_name("m", GLOBEX),
        link=linked,
        # What a message says of its way is not believed.
        delivery_info={"routing_key": queue_name("m", ACME)},
    )
    assert sent.get(timeout=PATIENCE_S) == globex.result(sent.id).model_dump(mode="json")
    assert celery_app.AsyncResult("linked").get(timeout=PATIENCE_S)["finish_reason"] == "length"
    assert not [name for name in (sent.id, "linked") if root.exists(Keys(ACME).job_key(name))]


def test_a_link_leads_into_no_other_tenants_queue(
    clients: dict[str, Client], celery_app: Celery, root: Redis
) -> None:
    foreign = queue_name("m", ACME)
    fields = {"prompt": "a tale", "sampling": SHORT}
    for way in ({"queue": foreign}, {"exchange": foreign, "routing_key": foreign}):
        link = celery_app.signature(TASK_NAME, kwargs=fields, immutable=True, task_id="smuggled", options=way)
        sent = celery_app.send_task(TASK_NAME, kwargs=fields, queue=queue_name("m", GLOBEX), link=link)
        with pytest.raises(GenerationError, match="another tenant"):
            sent.get(timeout=PATIENCE_S)
        assert clients[GLOBEX].result(sent.id).finish_reason == "length"
    clients[ACME].result(clients[ACME].submit(prompt="behind it", sampling=SHORT), timeout_s=PATIENCE_S)
    assert not root.exists(Keys(ACME).job_key("smuggled"))


def test_another_tenants_name_in_a_message_is_refused(globex: Client, celery_app: Celery) -> None:
    fields = {"prompt": "a tale", "tenant": ACME}
    sent = celery_app.send_task(TASK_NAME, kwargs=fields, queue=queue_name("m", GLOBEX))
    error = globex.result(sent.id, timeout_s=PATIENCE_S).error
    assert error is not None
    assert "tenant" in error.message


def test_a_cancel_reaches_the_job_of_its_tenant_alone(clients: dict[str, Client]) -> None:
    streams = {}
    for tenant, client in clients.items():
        client.submit(prompt="a tale", sampling=ENDLESS, job_id="endless")
        streams[tenant] = client.stream("endless", timeout_s=PATIENCE_S)
        assert isinstance(next(streams[tenant]), Started)
    clients[GLOBEX].cancel("endless")
    assert clients[GLOBEX].result("endless", timeout_s=PATIENCE_S).finish_reason == "cancelled"
    for _ in range(10):
        assert next(streams[ACME]).type == "token"
    for tenant in {*TENANTS} - {GLOBEX}:
        clients[tenant].cancel("endless")
        assert clients[tenant].result("endless", timeout_s=PATIENCE_S).finish_reason == "cancelled"


def test_a_revoke_reaches_the_job_of_its_tenant_alone(clients: dict[str, Client], celery_app: Celery) -> None:
    streams = {}
    for tenant, client in clients.items():
        client.submit(prompt="a tale", sampling=ENDLESS, job_id="revoked")
        streams[tenant] = client.stream("revoked", timeout_s=PATIENCE_S)
        assert isinstance(next(streams[tenant]), Started)
    celery_app.control.revoke("revoked")
    assert clients[GLOBEX].result("revoked", timeout_s=PATIENCE_S).finish_reason == "cancelled"
    for tenant in {*TENANTS} - {GLOBEX}:
        for _ in range(10):
            assert next(streams[tenant]).type == "token"
        clients[tenant].cancel("revoked")
        assert clients[tenant].result("revoked", timeout_s=PATIENCE_S).finish_reason == "cancelled"


def test_an_expired_job_has_its_end_in_the_tenants_results(
    globex: Client, celery_app: Celery, root: Redis
) -> None:
    expired = celery_app.send_task(
        TASK_NAME, kwargs={"prompt": "a tale"}, queue=queue_name("m", GLOBEX), expires=-1
    )
    assert globex.result(expired.id, timeout_s=PATIENCE_S).finish_reason == "deadline"
    with pytest.raises(DeadlineExceeded):
        celery_app.AsyncResult(expired.id).get(timeout=PATIENCE_S)
    assert not root.exists(Keys().result_key(expired.id), Keys(ACME).result_key(expired.id))


@pytest.mark.parametrize(
    "raw", [b"not a message", b'{"headers": {"task": "unknown", "id": "1"}, "body": ""}']
)
def test_a_message_that_cannot_be_read_is_the_dead_letter_of_its_tenant(
    raw: bytes, clients: dict[str, Client], root: Redis
) -> None:
    queue = queue_name("m", GLOBEX)
    root.lpush(queue, raw)
    wait_until(clients[GLOBEX].dead, "the message is put aside")
    (letter,) = clients[GLOBEX].dead()
    assert isinstance(letter, DeadLetter)
    assert letter.queue == queue
    clients[GLOBEX].drop(letter.number)
    assert clients[ACME].dead() == []


def test_each_tenant_sees_the_worker_and_forgets_its_own_jobs(
    clients: dict[str, Client], root: Redis
) -> None:
    for client in clients.values():
        assert [worker.name for worker in client.status().workers] == ["all@test"]
        client.submit(prompt="a canary", sampling=SHORT, job_id="forgotten")
    for client in clients.values():
        client.result("forgotten", timeout_s=PATIENCE_S)
    clients[ACME].purge("forgotten")
    assert clients[GLOBEX].result("forgotten").text
    assert not root.exists(Keys(ACME).events_key("forgotten"))


def test_nothing_is_left_of_what_was_under_way(root: Redis, clients: dict[str, Client]) -> None:
    unacked = Keys(joint_tenant(TENANTS)).unacked_key
    wait_until(lambda: root.hlen(unacked) == 0, "every message is acknowledged")
    assert not root.exists(*(Keys(tenant).unacked_key for tenant in ("default", *TENANTS)))
    assert {client.status().running for client in clients.values()} == {0}


def test_a_stopped_worker_gives_the_jobs_of_all_back(
    clients: dict[str, Client], worker: WorkerProcess
) -> None:
    for client in clients.values():
        client.submit(prompt="a tale", sampling=ENDLESS, job_id="left")
        assert isinstance(next(client.stream("left", timeout_s=PATIENCE_S)), Started)
    assert worker.stop() == 0
    for client in clients.values():
        status = client.status()
        assert (status.running, status.pending, status.depth) == (0, 1, 1)
