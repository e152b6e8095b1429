"""A connection and a loop of kombu as a worker has them."""

from collections.abc import Iterator

import pytest
from kombu import Connection
from kombu.asynchronous import Hub, set_event_loop

from llama_herd.worker.broker.queue_transport import QueueTransport
from tests.worker.broker.queue_reader import NOTES, TIMES


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    options = {"unacked_key": NOTES, "unacked_index_key": TIMES}
    with Connection(redis_url, transport=QueueTransport, transport_options=options) as connection:
        yield connection


@pytest.fixture
def hub() -> Iterator[Hub]:
    """The loop of a worker."""
    hub = Hub()
    set_event_loop(hub)
    yield hub
    hub.close()
    set_event_loop(None)
