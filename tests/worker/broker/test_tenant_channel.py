"""Where a tenant's links may lead."""

import pytest
from celery import Celery
from redis import Redis

from llama_herd.worker.broker.celery_config import lead_links_home
from llama_herd.worker.broker.tenant_channel import (
    MAX_LISTS,
    MAX_NAME,
    TenantTransport,
    may_receive,
    note_link,
    sent_links,
)
from llama_herd.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("queue", "owners"),
    [
        ("herd.m", {"default"}),
        ("herd.acme:m", {"acme"}),
        ("herd.acme:m\x06\x163", {"acme"}),
        ("herd:acme:pending", set()),
        ("celery-task-meta-1", set()),
        ("_kombu.binding.herd.acme:m", set()),
        ("billing", {"default", "acme", "globex"}),
    ],
)
def test_a_queue_of_ours_is_its_tenants_alone_and_a_key_of_ours_is_no_queue(
    queue: str, owners: set[str]
) -> None:
    assert {tenant for tenant in ("default", "acme", "globex") if may_receive(queue, tenant)} == owners


def test_lists_of_links_are_noted_by_tenant_in_bounds() -> None:
    for queue in ("herd.m", "herd.acme:m\x06\x16low", "x" * (MAX_NAME + 1), "billing", "billing"):
        note_link("noted", queue)
    assert sent_links("noted") == {"billing"}
    assert sent_links("another") == set()
    for number in range(MAX_LISTS + 5):
        note_link("noted", f"list {number}")
    assert len(sent_links("noted")) == MAX_LISTS


@pytest.mark.redis
def test_what_is_known_of_lists_of_links_is_bounded(redis: Redis, redis_url: str) -> None:
    app = Celery(broker=redis_url, set_as_current=False)
    lead_links_home(app, WorkerSettings.read(model="tales"))
    own = set(app.amqp.queues)
    with app.connection_for_write(transport=TenantTransport) as connection:
        for number in range(MAX_LISTS + 5):
            app.send_task("shop.keep", queue=f"list {number}", connection=connection)
        state = connection.default_channel.state
        known = (app.amqp.queues.keys() - own, state.queue_index, state.exchanges, state.bindings)
        assert [len(one) <= MAX_LISTS for one in (*known, connection.declared_entities)] == [True] * 5
        app.send_task("shop.keep", queue="list 0", connection=connection)
    assert [redis.llen(f"list {number}") for number in (0, 1, MAX_LISTS + 4)] == [2, 1, 1]
