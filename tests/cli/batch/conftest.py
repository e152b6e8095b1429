"""`herd batch` in a folder of its own, and a stand-in for workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.stand_in import StandIn
from tests.cli.batch.batch_command import BatchCommand


@pytest.fixture
def command(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> BatchCommand:
    monkeypatch.chdir(tmp_path)
    return BatchCommand(tmp_path, redis_url)


@pytest.fixture
def worker(redis_url: str) -> Iterator[StandIn]:
    with StandIn(redis_url) as worker:
        yield worker
