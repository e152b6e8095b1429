"""With the rights of its role each one does its part: a producer ends a job, a gateway tells of it."""

from pathlib import Path

import pytest
from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.redis_call import keep_loaded, run_dialogue
from llama_herd.tasks.ledger.script import kept_scripts
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.webhooks.setup import store_webhooks
from tests.guarded_redis import GuardedRedis, write_users
from tests.tasks.webhooks.conftest import SECRET
from tests.tasks.webhooks.receiver import Receiver
from tests.tasks.webhooks.sender_thread import SenderThread

pytestmark = pytest.mark.redis


@pytest.mark.long
def test_a_gateway_sends_what_a_producer_has_ended(tmp_path: Path) -> None:
    acl = Acl("acme", ["herd.acme:m"])
    write_users(tmp_path, {role: acl.rights(role) for role in (Role.PRODUCER, Role.WORKER, Role.GATEWAY)})
    with (
        GuardedRedis(tmp_path) as server,
        Redis.from_url(server.url) as root,
        Redis.from_url(server.url_of("worker")) as worker,
        Client(server.url_of("producer"), tenant="acme") as client,
        Receiver() as receiver,
    ):
        keep_loaded(worker, kept_scripts())
        run_dialogue(root, store_webhooks("acme", receiver.url, ["localhost"], jobs=True, secret=SECRET))
        with SenderThread(server.url_of("gateway")):
            client.cancel(client.submit(prompt="x", model="m", job_id="a"))
            own = f"http://localhost:{receiver.port}/own"
            client.cancel(client.submit(prompt="x", model="m", job_id="b", webhook=own))
            receiver.wait_for(2)
    assert sorted(receiver.ids) == ["a", "b"]
    assert {request.path for request in receiver.requests} == {"/hook?key=1", "/own"}
