"""A shop whose result_backend is another Redis than its broker, which is away for a while."""

import gc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.exceptions import ChordError
from celery.result import AsyncResult
from redis import Redis

from llama_herd.errors import DeadlineExceeded
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

QUEUE = queue_name("m")
JOB: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 4}}
BAD: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": -1}}
OWED = Ledger().key("owed")


@pytest.fixture(scope="module")
def results() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(appendonly=True) as server:
        yield server
        stop(server)


def stop(results: EmbeddedRedis) -> None:
    gc.collect()  # Celery's results unsubscribe when they are freed, and would wait for it
    results.stop()


def new_worker(
    server: EmbeddedRedis, results: EmbeddedRedis, model: Path, name: str, log: Path, **more: Any
) -> WorkerProcess:
    """Its records live for two seconds."""
    options = {"model_name": "m", "slots": 4, "result_url": results.url, "stream_ttl_s": 2, **more}
    return WorkerProcess(server.url, model, name, log, **options)


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis,
    results: EmbeddedRedis,
    tiny_settings: WorkerSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WorkerProcess]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with new_worker(server, results, tiny_settings.model, "one", log) as worker:
        yield worker


@pytest.fixture
def root(server: EmbeddedRedis) -> Iterator[Any]:
    with Redis.from_url(server.url) as redis:
        redis.delete("shop", "errors")
        yield redis


@pytest.fixture
def shop(server: EmbeddedRedis, results: EmbeddedRedis) -> Celery:
    """Somebody's own app, which knows nothing of us."""
    return Celery("shop", broker=server.url, backend=results.url, set_as_current=False)


def generation(shop: Celery, job: dict[str, Any] = JOB) -> Any:
    return shop.signature(TASK_NAME, kwargs=job, queue=QUEUE)


def then(shop: Celery, queue: str = "shop") -> Any:
    """A task of the shop's that nobody takes."""
    return shop.signature(f"{queue}.then", queue=queue)


def num_held(root: Any) -> int:
    """Messages in a worker's hands, and those that wait for one."""
    return int(root.llen(QUEUE) + sum(root.hlen(key) for key in root.keys("herd:*unacked")))


def all_acked(root: Any) -> None:
    wait_until(lambda: num_held(root) == 0, "every message is acked", PATIENCE_S)


@pytest.mark.usefixtures("worker")
def test_states_results_and_failures_are_where_the_shop_looks(shop: Celery, root: Any) -> None:
    good, bad = generation(shop).delay(), generation(shop, BAD).delay()
    assert good.get(timeout=PATIENCE_S)["finish_reason"] in ("stop", "length")
    with pytest.raises(Exception, match="max_tokens"):
        bad.get(timeout=PATIENCE_S)
    all_acked(root)  # long after nobody waits any more
    assert AsyncResult(good.id, app=shop).state == "SUCCESS"
    assert AsyncResult(bad.id, app=shop).state == "FAILURE"
    assert "max_tokens" in str(AsyncResult(bad.id, app=shop).info)
    assert not root.keys("celery-*")


@pytest.mark.usefixtures("worker")
def test_groups_chords_and_links(shop: Celery, root: Any) -> None:
    many = group(generation(shop) for _ in range(3)).delay().get(timeout=PATIENCE_S)
    assert [one["finish_reason"] in ("stop", "length") for one in many] == [True] * 3
    chord([generation(shop) for _ in range(3)])(then(shop))
    generation(shop).apply_async(link=then(shop, "links"))
    generation(shop, BAD).apply_async(link_error=then(shop, "errors"))
    wait_until(lambda: [root.llen(name) for name in ("shop", "links", "errors")] == [1, 1, 1], "all are sent")
    failed = chord([generation(shop), generation(shop, BAD)])(then(shop))
    wait_until(lambda: AsyncResult(failed.id, app=shop).state == "FAILURE", "its body has failed", PATIENCE_S)
    assert "max_tokens" in str(AsyncResult(failed.id, app=shop).result)
    assert isinstance(AsyncResult(failed.id, app=shop).result, ChordError)
    all_acked(root)
    assert root.llen("shop") == 1


@pytest.mark.usefixtures("worker")
def test_a_redis_that_is_away_holds_up_no_job_and_is_told_of_all_of_them_later(
    server: EmbeddedRedis, results: EmbeddedRedis, shop: Celery, root: Any
) -> None:
    root.delete("links")
    shop.backend.set_chord_size("owed", 3)
    sender = Celery("sender", broker=server.url, set_as_current=False)  # the shop's own would wait

    def send(job: dict[str, Any] = JOB, **options: Any) -> str:
        return str(sender.send_task(TASK_NAME, kwargs=job, queue=QUEUE, **options).id)

    stop(results)
    parts = [send(group_id="owed", group_index=place, chord=then(shop)) for place in range(3)]
    linked, bad = send(link=then(shop, "links")), send(BAD)
    late = send(expires=datetime.now(UTC) - timedelta(seconds=5))
    ids = [*parts, linked, bad, late]
    wait_until(lambda: root.zcard(OWED) == len(ids), "all are owed", PATIENCE_S)
    all_acked(root)
    with Client(server.url, model="m") as client:
        assert client.status().owed == len(ids)
        plain = client.submit(prompt="a tale", max_tokens=4)
        assert client.result(plain, timeout_s=PATIENCE_S).finish_reason in ("stop", "length")
    assert root.ttl(Ledger().job_key(late)) > 3600
    results.start()
    wait_until(lambda: root.zcard(OWED) == 0, "all are told", PATIENCE_S)
    found = {one: AsyncResult(one, app=shop) for one in ids}
    assert [found[one].state for one in ids] == ["SUCCESS"] * 4 + ["FAILURE"] * 2
    assert isinstance(found[late].result, DeadlineExceeded)
    assert root.llen("shop") == root.llen("links") == 1


def test_another_worker_tells_what_a_killed_one_owes(
    server: EmbeddedRedis,
    results: EmbeddedRedis,
    worker: WorkerProcess,
    tiny_settings: WorkerSettings,
    shop: Celery,
    root: Any,
    tmp_path: Path,
) -> None:
    sender = Celery("sender", broker=server.url, set_as_current=False)
    stop(results)
    ids = [str(sender.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE).id) for _ in range(5)]
    wait_until(lambda: root.zcard(OWED) == 5, "all are owed", PATIENCE_S)
    worker.kill()
    results.start()
    with new_worker(server, results, tiny_settings.model, "two", tmp_path / "log"):
        wait_until(lambda: root.zcard(OWED) == 0, "all are told", PATIENCE_S)
    assert {AsyncResult(one, app=shop).state for one in ids} == {"SUCCESS"}


def test_each_tenant_has_its_own_results_there(
    server: EmbeddedRedis, results: EmbeddedRedis, tiny_settings: WorkerSettings, root: Any, tmp_path: Path
) -> None:
    sender = Celery("sender", broker=server.url, set_as_current=False)
    shops = {tenant: Celery(backend=results.url, set_as_current=False) for tenant in ("globex", "acme")}
    for tenant, shop in shops.items():
        shop.conf.result_backend_transport_options = {"global_keyprefix": f"herd:{tenant}:"}
    debts = [Ledger(tenant).key("owed") for tenant in shops]

    def send(job_id: str) -> None:
        for tenant in shops:
            sender.send_task(TASK_NAME, kwargs=JOB, queue=queue_name("m", tenant), task_id=job_id)

    def is_told(job_id: str) -> bool:
        return all(AsyncResult(job_id, app=shop).state == "SUCCESS" for shop in shops.values())

    log = tmp_path / "log"
    with new_worker(server, results, tiny_settings.model, "both", log, tenants="globex,acme"):
        send("same-1")
        wait_until(lambda: is_told("same-1"), "both are told", PATIENCE_S)
        stop(results)
        send("same-2")
        wait_until(lambda: [root.zcard(key) for key in debts] == [1, 1], "both are owed", PATIENCE_S)
        results.start()
        wait_until(lambda: is_told("same-2"), "both are told", PATIENCE_S)
    with Redis.from_url(results.url) as stored:
        assert len(stored.keys("herd:*:celery-task-meta-same-*")) == 4
