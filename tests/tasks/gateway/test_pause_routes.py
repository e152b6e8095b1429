"""Pausing and draining over HTTP: by operators alone, of their own tenant."""

from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd

pytestmark = pytest.mark.redis

ACTS = ("/v1/queues/m/pause", "/v1/queues/m/resume", "/v1/workers/w@test/drain", "/v1/workers/w@test/resume")


def report(redis: Redis, name: str, model: str = "m", tenant: str = "default") -> None:
    status = WorkerStatus(name=name, state="ready", model=model, device="cpu", slots=4)
    run_call(redis, Reports(tenant).report_worker(status))


def post(gateway: GatewayThread, path: str, key: str = "") -> Any:
    """What is answered; the gateway has forgotten what it looked up a moment ago."""
    gateway.forget()
    return gateway.ask("POST", path, headers={"Authorization": f"Bearer {key}"} if key else {})


def queue_of(gateway: GatewayThread) -> Any:
    gateway.forget()
    (queue,) = gateway.ask("GET", "/v1/herd").json["queues"]
    return queue


def test_a_queue_is_paused_shown_and_resumed(gateway: GatewayThread, redis: Redis) -> None:
    report(redis, "w@test")
    told = post(gateway, "/v1/queues/m/pause")
    assert (told.status, told.json) == (200, {"model": "m", "is_paused": True, "paused_until_ms": None})
    told = post(gateway, "/v1/queues/m/pause?for_s=7200")
    until_ms = told.json["paused_until_ms"]
    shown = queue_of(gateway)
    assert (shown["is_paused"], shown["paused_until_ms"]) == (True, until_ms)
    told = post(gateway, "/v1/queues/m/resume")
    assert (told.status, told.json) == (200, {"model": "m", "is_paused": False, "paused_until_ms": None})
    assert queue_of(gateway)["is_paused"] is False


def test_a_worker_is_drained_and_takes_jobs_again(gateway: GatewayThread, redis: Any) -> None:
    report(redis, "w@test")
    told = post(gateway, "/v1/workers/w@test/drain?for_s=60")
    assert told.status == 200
    assert (told.json["worker"], told.json["is_drained"]) == ("w@test", True)
    assert redis.zscore(Keys().key("drained"), "w@test") == told.json["drained_until_ms"]
    assert post(gateway, "/v1/workers/w@test/resume").json["is_drained"] is False
    assert redis.exists(Keys().key("drained")) == 0


def test_a_worker_that_is_not_up_is_not_found(gateway: GatewayThread, redis: Redis) -> None:
    report(redis, "w@test")
    found = post(gateway, "/v1/workers/other/drain")
    assert (found.status, found.error["code"]) == (404, "worker_not_found")
    assert found.error["message"] == "no worker other is up. Up are: w@test"


@pytest.mark.parametrize("for_s", ["soon", "0", "-1", "nan", "1e9"])
def test_a_wrong_time_is_refused(gateway: GatewayThread, redis: Redis, for_s: str) -> None:
    report(redis, "w@test")
    for path in (ACTS[0], ACTS[2]):
        assert post(gateway, f"{path}?for_s={for_s}").status == 400
    assert not redis.exists(Keys().key("paused"), Keys().key("drained"))


@pytest.mark.parametrize("role", [KeyRole.SUBSCRIBER, KeyRole.PRODUCER])
def test_only_operators_may(closed_gateway: GatewayThread, redis: Redis, role: KeyRole) -> None:
    report(redis, "w@test")
    key = run_dialogue(redis, create_key(role, "default", role))
    assert [post(closed_gateway, path, key).status for path in ACTS] == [403] * 4
    assert not redis.exists(Keys().key("paused"), Keys().key("drained"))


def test_an_operator_reaches_its_own_tenant_alone(closed_gateway: GatewayThread, redis: Redis) -> None:
    report(redis, "w@test")
    key = run_dialogue(redis, create_key("acme", "acme", KeyRole.OPERATOR))
    assert [post(closed_gateway, path, key).status for path in ACTS] == [200, 200, 404, 200]
    post(closed_gateway, ACTS[0], key)
    assert post(closed_gateway, "/v1/queues/x:m/pause", key).status == 400
    assert redis.exists(Keys("acme").key("paused"))
    assert not redis.exists(Keys().key("paused"))


def test_jobs_are_taken_for_a_paused_model_though_no_worker_of_it_is_up(
    gateway: GatewayThread, herd: Herd, redis: Redis
) -> None:
    body = {"model": "m", "prompt": "x"}
    assert gateway.ask("POST", "/v1/completions", body).error["code"] == "model_not_found"
    post(gateway, ACTS[0])
    gateway.forget()
    assert "m" in [one["id"] for one in gateway.ask("GET", "/v1/models").json["data"]]
    with gateway.send("POST", "/v1/completions", b'{"model": "m", "prompt": "x", "stream": true}') as answer:
        assert answer.status == 200
    assert gateway.ask("POST", "/v1/jobs", body).status == 202
