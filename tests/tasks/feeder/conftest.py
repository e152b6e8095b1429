"""Where feeders of tests keep files, and a gateway that shares them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.tasks.feeder import batch_feeder
from tests.chaos.harness.patience import PATIENCE_S
from tests.tasks.gateway.gateway_thread import GatewayThread


@pytest.fixture(autouse=True)
def _no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that ends has time to give its batches back."""
    monkeypatch.setattr(batch_feeder, "STOP_S", PATIENCE_S)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def other(redis: Redis, redis_url: str, files: Path) -> Iterator[GatewayThread]:
    """A gateway that runs no batches."""
    with GatewayThread(redis_url, files=str(files), batches=0) as gateway:
        yield gateway
