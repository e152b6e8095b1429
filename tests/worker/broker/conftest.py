"""A connection of kombu as a worker has it."""

from collections.abc import Iterator

import pytest
from kombu import Connection

from llama_herd.worker.broker.queue_transport import QueueTransport
from tests.worker.broker.queue_reader import NOTES, TIMES


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    options = {"unacked_key": NOTES, "unacked_index_key": TIMES}
    with Connection(redis_url, transport=QueueTransport, transport_options=options) as connection:
        yield connection
