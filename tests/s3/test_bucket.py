"""Files, journals and whole batches on S3."""

from collections import Counter
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.errors import BadInput, StorageUnavailable
from llama_herd.tasks.storage.bucket import Bucket
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.killed_gateways import gateways
from tests.tasks.feeder.parts_laws import Batch, check_each_row_has_one_line
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.storage.storage_laws import FILE, LENGTHS, check_files, check_journals, written

pytestmark = [pytest.mark.redis, pytest.mark.s3]


@pytest.mark.parametrize("num_bytes", LENGTHS)
def test_files(bucket: str, num_bytes: int) -> None:
    check_files(Bucket(bucket), num_bytes)


def test_journals(bucket: str) -> None:
    check_journals(Bucket(bucket))


@pytest.mark.parametrize("seed", range(4))
def test_each_row_has_one_line_whoever_writes_on(bucket: str, redis: Redis, seed: int) -> None:
    check_each_row_has_one_line(Batch(redis, Bucket(bucket)), seed)


def test_a_batch_runs_on_s3_and_leaves_its_files_alone(bucket: str, redis: Redis, redis_url: str) -> None:
    asked = rows(300)
    with GatewayThread(redis_url, files=bucket) as gateway, StandIn(redis_url):
        api = BatchApi(lambda: gateway.url)
        batch = api.end_of(api.begin(asked))
        assert batch["status"] == "completed"
        answers = api.content(batch["output_file_id"])
        assert Counter(one["custom_id"] for one in answers) == Counter(row["custom_id"] for row in asked)
        wait_until(lambda: not redis.keys("herd:batches@*"), "its parts are deleted")
        from s3fs import S3FileSystem

        left = S3FileSystem(skip_instance_cache=True).find(bucket)
        assert {path.rpartition("/")[2] for path in left} == {batch["input_file_id"], batch["output_file_id"]}


def test_gateways_are_killed_under_a_batch_on_s3(
    bucket: str, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    asked = rows(400)
    with gateways(redis_url, tmp_path, files=bucket) as found, StandIn(redis_url, slots=4) as worker:
        batch_id = found.api.begin(asked)
        for share in (0.05, 0.4, 0.8):
            wait_until(lambda: len(worker.answered) >= share * len(asked), "some are answered")  # noqa: B023
            found.kill()
        found.check_whole(batch_id, [row["custom_id"] for row in asked])


def test_a_server_that_is_away_is_told(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StorageUnavailable, match=r"EndpointConnectionError\. Fix: check the bucket"):
        written(Bucket(bucket), FILE, b"x")


def test_a_bucket_is_named() -> None:
    with pytest.raises(BadInput, match="names no bucket"):
        Bucket("s3://")
