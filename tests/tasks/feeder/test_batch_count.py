"""What a gateway counts of its batches."""

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks.feeder.batch_execution import BatchCount
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread


@pytest.mark.redis
def test_each_batch_and_each_row_is_counted_once(redis_url: str) -> None:
    count = BatchCount()
    with GatewayThread(redis_url, batch_count=count) as gateway, StandIn(redis_url) as worker:
        api = BatchApi(lambda: gateway.url)
        api.end_of(api.begin(rows(20)))
        worker.hold()
        second = api.begin(rows(5))
        wait_until(lambda: count.num_under_way == 1, "it is under way")
        api.cancel(second)
        api.end_of(second)
        wait_until(lambda: not count.num_under_way, "it is over")
    assert count.num_ended == {"completed": 1, "cancelled": 1}
    assert count.num_rows == {"completed": 20, "failed": 0}
