"""What cannot be run or deleted holds up nothing behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis

#: More than a round takes.
NUM_SPOILT = 130


@pytest.fixture
def stand_in(redis_url: str) -> Iterator[StandIn]:
    """A worker without a model."""
    with StandIn(redis_url) as worker:
        yield worker


@pytest.fixture
def own(redis: Redis, redis_url: str, tmp_path: Path) -> Iterator[GatewayThread]:
    """A gateway with a folder of its own that runs two batches at a time."""
    with GatewayThread(redis_url, files=str(tmp_path), batches=2) as gateway:
        yield gateway


def spoil(redis: Redis, gateway: GatewayThread, kind: str, of_key: str) -> None:
    """Let things be due first whose records are none."""
    due = f"herd:{kind}@{gateway.context.storage.id}"
    for number in range(NUM_SPOILT):
        redis.set(f"herd:default:{{spoilt-{number}}}:{of_key}", "spoilt")
        redis.zadd(due, {f"default/spoilt-{number}": number})


def test_a_record_that_cannot_be_read_holds_up_no_batch(
    own: GatewayThread, redis: Redis, stand_in: StandIn
) -> None:
    spoil(redis, own, "batches", "batch")
    api = BatchApi(lambda: own.url)
    for batch_id in [api.begin(rows(3)) for _ in range(3)]:
        assert api.end_of(batch_id)["status"] == "completed"


def test_a_file_that_cannot_be_deleted_holds_up_no_other(
    own: GatewayThread, redis: Redis, tmp_path: Path
) -> None:
    spoil(redis, own, "files", "file")
    file_id = BatchApi(lambda: own.url).upload(b"{}\n").json["id"]
    redis.hset(f"herd:default:{{{file_id}}}:file", "expires_ms", 1)
    redis.zadd(f"herd:files@{own.context.storage.id}", {f"default/{file_id}": NUM_SPOILT})
    wait_until(lambda: not (tmp_path / "default" / file_id).exists(), "its bytes are deleted")


def test_bytes_that_cannot_be_deleted_hold_up_no_other(
    own: GatewayThread, redis: Redis, tmp_path: Path
) -> None:
    api = BatchApi(lambda: own.url)
    stays, goes = (api.upload(b"{}\n").json["id"] for _ in range(2))
    (tmp_path / "default" / f"{stays}.new").mkdir()  # in the place of a draft
    for number, file_id in enumerate((stays, goes)):
        redis.delete(f"herd:default:{{{file_id}}}:file")
        redis.zadd(f"herd:files@{own.context.storage.id}", {f"default/{file_id}": number})
    wait_until(lambda: not (tmp_path / "default" / goes).exists(), "its bytes are deleted")
    (tmp_path / "default" / f"{stays}.new").rmdir()
