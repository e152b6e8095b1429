"""A worker, clients, Celery and the gateway by Sentinels: all follow when the primary is lost."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from llama_herd.errors import RedisUnavailable, StreamRewritten
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.faults.failover import cut_off
from tests.chaos.harness.patience import wait_until
from tests.local.processes import ForkedWorker, standstill
from tests.local.watched_redis import WatchedRedis
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.program]

KEEP_S = 500
SHORT: dict[str, Any] = {"prompt": "a", "sampling": {"max_tokens": 3}}


@pytest.fixture
def primary() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as primary:
        yield primary


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "demoted"])
@pytest.mark.parametrize(
    "tenants", ["", pytest.param("default,acme", marks=pytest.mark.slow)], ids=["one tenant", "tenants"]
)
def test_all_follow_the_primary(
    primary: EmbeddedRedis, endless_settings: WorkerSettings, tmp_path: Path, tenants: str, is_lost: bool
) -> None:
    """Also from one that lives on as a replica, and keeps all connections."""
    with WatchedRedis(primary) as watched:
        url = watched.url.replace("://", "://127.0.0.1:1,")  # the first Sentinel is gone, too
        more = {"redis_url": url, "tenants": tenants, "model_name": "m", "replicas": 1}
        settings = endless_settings.model_copy(update=more)
        with (
            ForkedWorker(settings, "w@test", tmp_path / "log", **standstill(tmp_path, step_s=0.02)) as worker,
            Client(settings=settings) as client,
            make_app(settings) as app,
            GatewayThread(url, model_name="m", tenant="default") as gateway,
        ):
            long = client.submit(prompt="a", sampling={"max_tokens": 4096})
            wait_until(lambda: client.job(long).tokens > 20, "the long job has begun")
            if is_lost:
                primary.stop()
                watched.wait_for_promotion()
                watched.rejoin()
            else:
                watched.demote()

            def goes_on() -> bool:
                before = client.job(long).tokens
                wait_until(lambda: client.job(long).tokens > before, "the long job goes on")
                return True

            wait_until(lambda: _answered(goes_on), "the worker is back")
            wait_until(lambda: _answered(lambda: client.submit(**SHORT)), "jobs are accepted")
            assert client.result(client.submit(**SHORT), timeout_s=30).finish_reason == "length"
            kept = {**SHORT, "keep_s": KEEP_S}
            sent = app.send_task(TASK_NAME, kwargs=kept, queue=app.conf.task_default_queue)
            assert sent.get(timeout=30)["finish_reason"] == "length"
            assert 0 < app.backend.client.ttl(app.backend.get_key_for_task(sent.id)) <= KEEP_S
            body = {"model": "m", "prompt": "a", "max_tokens": 2}
            wait_until(
                lambda: gateway.ask("POST", "/v1/completions", body).status == 200, "the gateway is back"
            )
            client.cancel(long)
            result = client.result(long, timeout_s=30)
            assert (result.finish_reason, result.attempts) == ("cancelled", 1)
            assert worker.is_alive


def test_a_reader_is_told_where_another_worker_goes_on_from_before_what_it_has_read(
    primary: EmbeddedRedis, endless_settings: WorkerSettings, tmp_path: Path
) -> None:
    with WatchedRedis(primary) as watched:
        settings = endless_settings.model_copy(update={"redis_url": watched.url, "model_name": "m"})
        slow = standstill(tmp_path, step_s=0.02)
        with ExitStack() as stack:
            client = stack.enter_context(Client(settings=settings))
            worker = stack.enter_context(ForkedWorker(settings, "a@test", tmp_path / "a.log", **slow))
            job_id = client.submit(prompt="a", sampling={"max_tokens": 300, "seed": 7})
            events = client.stream(job_id)
            read = list(islice(events, 10))
            with cut_off(watched, primary):
                read += islice(events, 10)
                worker.process.kill()
                primary.stop()
            watched.wait_for_promotion()
            stack.enter_context(ForkedWorker(settings, "b@test", tmp_path / "b.log", **slow))
            with pytest.raises(StreamRewritten, match=f"up to number {read[-1].seq}"):
                list(events)
            result = client.result(job_id, timeout_s=30)
            assert (result.attempts, len(result.ids)) == (2, 300)
            assert (
                "".join(event.text for event in client.stream(job_id) if event.type == "token") == result.text
            )


def _answered(act: Any) -> bool:
    """Whether Redis was there for it."""
    try:
        return bool(act())
    except RedisUnavailable:
        return False
