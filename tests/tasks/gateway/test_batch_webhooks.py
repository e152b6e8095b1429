"""The end of a batch over HTTP is told: signed, by state alone."""

from collections.abc import Iterator

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection import connect
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.webhooks.setup import set_webhooks
from tests.batch_api import BatchApi, rows
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.webhooks.conftest import SECRET
from tests.tasks.webhooks.receiver import Receiver

pytestmark = pytest.mark.redis


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """Where no other gateway of these tests sends."""
    with EmbeddedRedis() as server:
        yield server


def test_the_end_of_a_batch_is_told_and_its_rows_are_not(own_redis: EmbeddedRedis) -> None:
    with (
        Receiver() as receiver,
        GatewayThread(own_redis.url, webhook_private=True) as gateway,
        StandIn(own_redis.url),
        connect(own_redis.url) as redis,
    ):
        run_dialogue(redis, set_webhooks("default", receiver.url, (), jobs=True, secret=SECRET))
        api = BatchApi(lambda: gateway.url)
        first, second = api.begin(rows(20)), api.begin(["no row"])
        told = {request.message: request.verified(SECRET) for request in receiver.wait_for(2)}
    data = {"id": first, "state": "completed", "finish_reason": None}
    assert told[f"msg_{first}"].items() >= {"type": "batch.completed", "data": data}.items()
    assert told[f"msg_{second}"]["type"] == "batch.failed"


def test_a_wrong_address_is_named(gateway: GatewayThread) -> None:
    answer = BatchApi(lambda: gateway.url).create("file-" + 24 * "0", webhook="ftp://example.com")
    assert (answer.status, answer.error["param"]) == (400, "webhook")
