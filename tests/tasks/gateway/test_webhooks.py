"""A gateway takes a job with an address of its own, and tells it of the end."""

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.webhooks.setup import store_webhooks
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.webhooks.conftest import SECRET
from tests.tasks.webhooks.receiver import Receiver


@pytest.mark.long
def test_a_job_names_where_to_tell_of_its_end(server: EmbeddedRedis) -> None:
    """At a Redis of its own: elsewhere another gateway may be the one that sends."""
    with (
        Redis.from_url(server.url) as redis,
        Receiver() as receiver,
        StandIn(server.url),
        GatewayThread(server.url, webhook_private=True) as gateway,
    ):
        dialogue = store_webhooks("default", "https://example.com/", ["127.0.0.1"], jobs=False, secret=SECRET)
        run_dialogue(redis, dialogue)
        taken = gateway.ask("POST", "/v1/jobs", {"prompt": "x", "model": "tales", "webhook": receiver.url})
        (request,) = receiver.wait_for(1)
    data = {"id": taken.json["id"], "state": "done", "finish_reason": "length"}
    assert request.verified(SECRET)["data"] == data


def test_an_address_of_a_wrong_form_is_named(gateway: GatewayThread) -> None:
    reply = gateway.ask("POST", "/v1/jobs", {"prompt": "x", "model": "tales", "webhook": "ftp://canary/"})
    assert reply.status == 422
    assert "webhook: must begin with https://" in reply.error["message"]
    assert b"canary" not in reply.raw
