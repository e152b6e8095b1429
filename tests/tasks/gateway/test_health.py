"""Is it alive, and would a job be run?"""

import asyncio
import os
import signal
from contextlib import suppress
from typing import NoReturn

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.errors import RedisUnavailable
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.gateway import herd_routes
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


def test_it_is_ready_once_a_worker_serves(redis: Redis, redis_url: str, gateway: GatewayThread) -> None:
    assert gateway.ask("GET", "/health/live").status == 200
    found = gateway.ask("GET", "/health/ready")
    assert (found.status, found.json["reason"]) == (503, "no worker is ready")
    gateway.forget()
    with StandIn(redis_url):
        assert gateway.ask("GET", "/health/ready").status == 200


@pytest.mark.long
def test_without_redis_it_is_alive_and_not_ready() -> None:
    with EmbeddedRedis() as server, GatewayThread(server.url) as gateway:
        server.stop()
        assert gateway.ask("GET", "/health/live").status == 200
        assert gateway.ask("GET", "/health/ready").json["reason"] == "Redis is away"
        found = gateway.ask("GET", "/v1/models")
        assert (found.status, found.error["code"]) == (503, "queue_unavailable")
        assert found.headers["retry-after"] == "1"
        assert "127.0.0.1" not in found.error["message"]


def test_a_redis_that_stands_still_does_not_hold_the_answer_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(herd_routes, "READY_S", 0.2)
    with EmbeddedRedis() as server, GatewayThread(server.url) as gateway:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            found = gateway.ask("GET", "/health/ready")
            assert (found.status, found.json["reason"]) == (503, "Redis does not answer")
            assert gateway.ask("GET", "/health/live").status == 200
        finally:
            os.kill(server.pid, signal.SIGCONT)
        monkeypatch.setattr(herd_routes, "READY_S", 60.0)
        assert gateway.ask("GET", "/health/ready").json["reason"] == "no worker is ready"


def test_a_look_up_that_is_slow_to_obey_a_cancel_does_not_hold_the_answer_up(
    gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As redis-py may be, which loses a cancel that comes with its own time limit."""
    is_over = asyncio.Event()

    async def deaf(_: object) -> NoReturn:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await is_over.wait()
        raise RedisUnavailable("late")

    monkeypatch.setattr(herd_routes, "READY_S", 0.05)
    monkeypatch.setattr(gateway.context.connections, "run", deaf)
    assert gateway.ask("GET", "/health/ready").json["reason"] == "Redis does not answer"
    monkeypatch.undo()
    gateway.loop.call_soon_threadsafe(is_over.set)
