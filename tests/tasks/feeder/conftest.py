"""Where feeders of tests keep files, and a gateway that shares them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.tasks.gateway.gateway_thread import GatewayThread


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def other(redis: Redis, redis_url: str, files: Path) -> Iterator[GatewayThread]:
    """A gateway that runs no batches."""
    with GatewayThread(redis_url, files=str(files), batches=0) as gateway:
        yield gateway
