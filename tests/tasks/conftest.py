"""A ledger on an empty Redis, with deaths and leases as in production."""

from collections.abc import Iterator

import pytest
from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from tests.tasks.herd import Herd


@pytest.fixture
def herd(redis: Redis) -> Herd:
    return Herd(redis, Ledger(lease_ms=60_000, worker="w"))


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client
