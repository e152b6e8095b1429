"""The worker without a model that benchmarks and tests of clients use."""

from typing import Any

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks import Client
from tests.chaos.harness.patience import PATIENCE_S

pytestmark = pytest.mark.redis


def test_a_job_that_is_cancelled_before_its_first_event_ends(redis_url: str) -> None:
    with Client(redis_url, model="tales") as client:

        def cancel(job_id: str, _: Any) -> None:
            client.cancel(job_id)

        job_id = client.submit(prompt="x")
        with StandIn(redis_url, verdict=cancel):
            assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "cancelled"
