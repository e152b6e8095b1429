"""Messages that no worker reads are named by `herd doctor`."""

from typing import Any

import pytest
from kombu import Connection, Exchange, Producer, Queue
from redis import Redis

from llama_herd.cli.doctor.redis_checks import check_queue_lists

pytestmark = pytest.mark.redis


def send(url: str, **options: Any) -> None:
    """A message of the highest priority number, by an exchange that no worker can know."""
    with Connection(url, transport_options=options) as connection:
        queue = Queue("herd.tales", Exchange("own"), "herd.tales")
        Producer(connection.channel()).publish("x", routing_key=queue.name, priority=9, declare=[queue])


@pytest.mark.parametrize("options", [{}, {"priority_steps": [0, 9]}, {"priority_steps": list(range(10))}])
def test_of_lists_that_workers_read_nothing_is_said(
    redis: Redis, redis_url: str, options: dict[str, Any]
) -> None:
    redis.rpush("shop.herd.orders", "x")
    send(redis_url, **options)
    assert list(check_queue_lists(redis_url)) == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"sep": ":"}, "herd.tales:9"),
        ({"sep": "-", "priority_steps": [0, 4]}, "herd.tales-4"),
        ({"global_keyprefix": "shop/"}, "shop/herd.tales"),
        ({"priority_steps": [12]}, "herd.tales\\x06\\x1612"),
    ],
)
def test_a_list_that_no_worker_reads_is_named(
    redis: Redis, redis_url: str, options: dict[str, Any], name: str
) -> None:
    send(redis_url, **options)
    (finding,) = check_queue_lists(redis_url)
    assert finding.state == "warn"
    assert f"'{name}" in finding.detail
    assert "(1)" in finding.detail
    assert "broker_transport_options" in finding.fix
