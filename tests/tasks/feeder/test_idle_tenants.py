"""A gateway holds connections for tenants whose batches it runs, and for no others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


@pytest.fixture
def gateway(redis: Redis, redis_url: str, files: Path) -> Iterator[GatewayThread]:
    with GatewayThread(redis_url, files=str(files), open=False) as gateway:
        yield gateway


def num_connections(redis: Redis) -> int:
    return int(redis.info("clients")["connected_clients"])


def run_batch(redis: Redis, redis_url: str, gateway: GatewayThread, tenant: str) -> None:
    key = run_dialogue(redis, create_key(tenant, tenant, KeyRole.PRODUCER))
    with StandIn(redis_url, tenant=tenant):
        api = BatchApi(lambda: gateway.url, key)
        assert api.end_of(api.begin(rows(2)))["status"] == "completed"


def test_as_many_connections_are_held_after_batches_of_many_tenants_as_before(
    redis: Redis, redis_url: str, gateway: GatewayThread
) -> None:
    run_batch(redis, redis_url, gateway, "first")
    before = num_connections(redis)
    for number in range(12):
        run_batch(redis, redis_url, gateway, f"tenant-{number}")
    wait_until(lambda: num_connections(redis) <= before + 4, f"hardly more than {before} connections")
