"""While no worker is up, a gateway takes jobs and tells what waits, also where Redis has users."""

from pathlib import Path

import pytest
from redis import Redis

from llama_herd.errors import HerdError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops import ledger_collector
from llama_herd.ops.ledger_collector import LedgerReader
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import PATIENCE_S
from tests.guarded_redis import GuardedRedis, write_users

pytestmark = pytest.mark.redis

ACLS = [Acl("default", ["herd.llama"])]
USERS = {
    "alone": Acl.rights_in(ACLS, Role.GATEWAY),
    "door": Acl.rights_in(ACLS, Role.GATEWAY, Role.OPERATOR),
}


def num_due(server: EmbeddedRedis, url: str) -> list[int]:
    """What a gateway with this user tells of each queue; empty if it can tell nothing."""
    settings = WorkerSettings(redis_url=url, models="llama")
    with connect(url, tries=0) as redis:
        reader = LedgerReader(redis, settings)
        reading = reader.read()
        reader.close()
    loads = reading.loads if reading else ()
    return [queue.num_due for load in loads for queue in load.queues if queue.queue == "herd.llama"]


@pytest.mark.long
def test_a_gateway_that_is_operator_too_needs_no_worker_to_have_been_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_collector, "WAIT_S", PATIENCE_S)  # however slow Redis is
    write_users(tmp_path, USERS)
    with GuardedRedis(tmp_path) as server, Redis.from_url(server.url) as root:
        alone, door = server.url_of("alone"), server.url_of("door")
        with Client(alone) as client, pytest.raises(HerdError, match="worker"):
            client.submit(prompt="x", model="llama")
        assert num_due(server, alone) == []

        with Client(door) as client:
            client.submit(prompt="x", model="llama")
        assert num_due(server, door) == num_due(server, alone) == [1]
        root.script_flush()
        assert num_due(server, door) == [1]
