"""The law of batches over HTTP: whichever gateway is killed, each row has one line, and no row is lost."""

from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from tests.batch_api import rows
from tests.chaos.harness.patience import wait_until
from tests.killed_gateways import gateways

pytestmark = pytest.mark.redis


@pytest.mark.fault
def test_gateways_are_killed_under_a_batch(redis_url: str, redis: Redis, tmp_path: Path) -> None:
    asked = rows(600)
    with gateways(redis_url, tmp_path) as found, StandIn(redis_url, slots=4) as worker:
        api = found.api
        batch_id = api.begin(asked)
        for share in (0.05, 0.3, 0.6, 0.9):
            wait_until(lambda: len(worker.answered) >= share * len(asked), "some are answered")  # noqa: B023
            found.kill()
        found.check_whole(batch_id, [row["custom_id"] for row in asked])
    wait_until(lambda: not redis.keys("herd:batches@*"), "nothing is left to do")
