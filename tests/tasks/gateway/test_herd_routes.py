"""What the page is told of the herd: what `herd status --json` shows, and no more than a key may see."""

import json
from collections.abc import Callable
from importlib.metadata import version
from time import monotonic
from typing import Any

import pytest
from pydantic import TypeAdapter
from redis import Redis

from llama_herd.tasks import Client
from llama_herd.tasks.client.tenant_status import Status
from llama_herd.tasks.gateway.herd_routes import FOR_OPERATORS
from llama_herd.tasks.gateway.tenant_client import FRESH_S
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd, commands, started

pytestmark = pytest.mark.redis


def test_the_version_is_told(gateway: GatewayThread) -> None:
    assert gateway.ask("GET", "/version").json == {"version": version("llama-herd")}


def seen(gateway: GatewayThread, key: str = "") -> Any:
    gateway.forget()
    found = gateway.ask("GET", "/v1/herd", headers={"Authorization": f"Bearer {key}"} if key else {})
    assert found.status == 200, found.raw
    return found.json


def key_of(redis: Redis, role: KeyRole, tenant: str = "default") -> str:
    return run_dialogue(redis, create_key(f"{tenant}-{role}", tenant, role))


def test_it_is_what_herd_status_shows_and_who_waits(
    gateway: GatewayThread, herd: Herd, redis_url: str
) -> None:
    herd.submit("runs")
    herd.claimed("runs", "w")
    herd.emit("w", started("runs"))
    herd.submit("waits")
    herd.pass_time("waits", 60_000)
    found = seen(gateway)
    with Client(redis_url) as client:
        status = json.loads(TypeAdapter(Status).dump_json(client.status()))
    del status["now_ms"]
    for queue in (*found["queues"], *status["queues"]):
        queue |= {name: "time goes by" for name in queue if name.endswith("_s")}
    assert {name: found[name] for name in status} == status
    assert (found["tenant"], found["role"]) == ("default", "operator")
    runs, waits = found["jobs"]
    assert (runs["job_id"], runs["state"], runs["worker"]) == ("runs", "running", "w")
    assert (waits["job_id"], waits["state"]) == ("waits", "queued")
    assert waits["now_ms"] - waits["due_ms"] >= 0


def test_only_operators_see_ids(gateway: GatewayThread, herd: Herd, redis: Redis) -> None:
    """An id is what a subscriber needs to read a job."""
    herd.submit("waits")
    for role in (KeyRole.SUBSCRIBER, KeyRole.PRODUCER):
        found = seen(gateway, key_of(redis, role))
        assert {name for name, value in found.items() if value is None} == set(FOR_OPERATORS)
        assert "waits" not in json.dumps(found)
        assert [worker["name"] for worker in found["workers"]] == ["w"]
    assert [job["job_id"] for job in seen(gateway, key_of(redis, KeyRole.OPERATOR))["jobs"]] == ["waits"]


def test_another_tenant_sees_nothing_of_it(gateway: GatewayThread, herd: Herd, redis: Redis) -> None:
    herd.submit("waits")
    found = seen(gateway, key_of(redis, KeyRole.OPERATOR, "acme"))
    assert (found["workers"], found["queues"], found["jobs"], found["pending"]) == ([], [], [], 0)


def test_no_prompt_is_shown(gateway: GatewayThread, herd: Herd) -> None:
    herd.submit("waits")
    assert "secret" not in json.dumps(seen(gateway))


def test_many_who_look_cost_one_look_a_second(gateway: GatewayThread, herd: Herd, redis: Any) -> None:
    def num_calls(look: Callable[[], object]) -> int:
        return sum(one.startswith("EVALSHA ") for one in commands(redis, look, by_scripts=False))

    seen(gateway)
    began_s = monotonic()
    of_a_look = num_calls(lambda: seen(gateway))
    of_many = num_calls(lambda: [gateway.ask("GET", "/v1/herd") for _ in range(20)])
    assert of_many <= of_a_look * (1 + int((monotonic() - began_s) / FRESH_S))
