"""The end of a batch over HTTP is told: signed, by state alone."""

import json

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.webhooks.setup import store_webhooks
from tests.batch_api import BatchApi, lines, rows
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.webhooks.conftest import SECRET
from tests.tasks.webhooks.receiver import Receiver

pytestmark = pytest.mark.redis


def test_the_end_of_a_batch_is_told_and_its_rows_are_not(server: EmbeddedRedis) -> None:
    with (
        Receiver() as receiver,
        GatewayThread(server.url, webhook_private=True) as gateway,
        StandIn(server.url),
        connect(server.url) as redis,
    ):
        run_dialogue(redis, store_webhooks("default", receiver.url, (), jobs=True, secret=SECRET))
        api = BatchApi(lambda: gateway.url)
        first, second = api.begin(rows(20)), api.begin(["no row"])
        own = {"webhook": receiver.url, "webhook_secret": "whsec_" + 32 * "A"}
        third = api.begin(rows(1), **own)
        came = {request.message: request for request in receiver.wait_for(3)}
        assert own["webhook_secret"] not in json.dumps(api.show(third))
    told = {name: one.verified(SECRET) for name, one in came.items() if name != f"msg_{third}"}
    assert came[f"msg_{third}"].verified(own["webhook_secret"])["data"]["id"] == third
    data = {"id": first, "state": "completed", "finish_reason": None}
    assert told[f"msg_{first}"].items() >= {"type": "batch.completed", "data": data}.items()
    assert told[f"msg_{second}"]["type"] == "batch.failed"


def test_a_wrong_address_is_named(gateway: GatewayThread) -> None:
    answer = BatchApi(lambda: gateway.url).create("file-" + 24 * "0", webhook="ftp://example.com")
    assert (answer.status, answer.error["param"]) == (400, "webhook")


@pytest.mark.parametrize(
    "fields", [{"webhook": "https://example.com"}, {}], ids=["wrong", "without an address"]
)
def test_a_wrong_secret_is_named_and_not_shown(gateway: GatewayThread, fields: dict[str, str]) -> None:
    secret = "whsec_canary" if fields else "whsec_canary" + 26 * "A"
    api = BatchApi(lambda: gateway.url)
    answer = api.create("file-" + 24 * "0", webhook_secret=secret, **fields)
    assert (answer.status, answer.error["param"]) == (400, "webhook_secret")
    assert b"canary" not in answer.raw


def test_another_secret_is_another_batch(gateway: GatewayThread) -> None:
    api, own = BatchApi(lambda: gateway.url), {"webhook": "https://example.com/"}
    file_id = api.upload(lines(rows(1))).json["id"]
    statuses = [
        api.create(file_id, "one", **own, webhook_secret="whsec_" + 32 * letter).status for letter in "AAB"
    ]
    assert statuses == [200, 200, 409]
