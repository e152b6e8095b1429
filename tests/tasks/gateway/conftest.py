"""A gateway on an empty Redis, and the worker's side of it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger import reports
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.events import End, Token, ToolCall
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.batch_api import BatchApi
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import QUEUE, Herd


@pytest.fixture(scope="session")
def lasting_gateway(redis_server: EmbeddedRedis) -> Iterator[GatewayThread]:
    with GatewayThread(redis_server.url, heartbeat_s=0.2) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def lasting_closed_gateway(redis_server: EmbeddedRedis) -> Iterator[GatewayThread]:
    with GatewayThread(redis_server.url, heartbeat_s=0.2, open=False) as gateway:
        yield gateway


@pytest.fixture
def closed_gateway(redis: Redis, lasting_closed_gateway: GatewayThread) -> Iterator[GatewayThread]:
    """One that lets nobody in without a key."""
    lasting_closed_gateway.forget()
    yield lasting_closed_gateway
    lasting_closed_gateway.rest()


@pytest.fixture
def gateway(redis: Redis, lasting_gateway: GatewayThread) -> Iterator[GatewayThread]:
    """One that is open, and knows nothing, since it has nothing to know: the next test gets the same one."""
    lasting_gateway.forget()
    yield lasting_gateway
    lasting_gateway.rest()


@pytest.fixture(scope="session")
def lasting_telling_gateway(redis_server: EmbeddedRedis) -> Iterator[GatewayThread]:
    with GatewayThread(redis_server.url, heartbeat_s=0.2, request_log="all") as gateway:
        yield gateway


@pytest.fixture
def telling_gateway(redis: Redis, lasting_telling_gateway: GatewayThread) -> Iterator[GatewayThread]:
    """One that is open, and logs each request."""
    lasting_telling_gateway.forget()
    yield lasting_telling_gateway
    lasting_telling_gateway.rest()


@pytest.fixture
def herd(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Herd:
    """What workers do, by hand; one of them has said that it serves `tales`, and says it no more."""
    monkeypatch.setattr(reports, "WORKER_TTL_S", 600)
    status = WorkerStatus(name="w", state="ready", model="tales", device="none", slots=1)
    run_call(redis, Reports().report_worker(status))
    return Herd(redis, Ledger(lease_ms=60_000, worker="w"))


@pytest.fixture
def stand_in(redis_url: str) -> Iterator[StandIn]:
    """A worker without a model."""
    with StandIn(redis_url) as worker:
        yield worker


@pytest.fixture
def api(gateway: GatewayThread) -> BatchApi:
    return BatchApi(lambda: gateway.url)


@pytest.fixture
def thoughtful(herd: Herd) -> Callable[..., None]:
    """Answers the next job as a model that thinks, speaks and calls tools."""

    def answer(**end: Any) -> None:
        wait_until(lambda: herd.redis.llen(QUEUE), "a job is there")
        job_id = str(json.loads(herd.redis.lpop(QUEUE))["headers"]["id"])
        herd.claimed(job_id)
        call = ToolCall(index=0, id="c0", name="weather", arguments='{"city": "Ulm"}')
        told: tuple[dict[str, Any], ...] = (
            {"reasoning": "hm"},
            {"content": "I look."},
            {"tool_calls": (call,)},
        )
        head: dict[str, Any] = {"job": job_id, "epoch": 1}
        for number, fields in enumerate(told):
            event = Token(
                seq=number + 1, i=number, ids=(number,), text="x", **{"content": "", **fields}, **head
            )
            herd.emit("one", EmitEntry.from_event(event, number))
        last = End(seq=4, n=3, attempts=1, **{"finish_reason": "stop", **end}, **head)
        herd.emit("one", EmitEntry.from_event(last, 3))

    return answer
