"""A batch over HTTP while gateways, workers and Redis are killed at random: the same answers, each once."""

import random
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.batch_api import Answer, BatchApi
from tests.chaos.harness.patience import need
from tests.cli.batch.killing import deterministic_workers, killing
from tests.durable_redis import DurableRedis
from tests.killed_gateways import gateways

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(900)]


def asked(num_rows: int) -> list[Answer]:
    """Rows of some length whose texts depend on nothing but the row."""
    return [
        {"custom_id": f"c{n}", "prompt": f"the llama {n} ", "max_tokens": 20 + n % 40, "seed": n}
        for n in range(num_rows)
    ]


def texts(api: BatchApi, batch_id: str) -> dict[str, Any]:
    answers = api.content(api.show(batch_id)["output_file_id"])
    return {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in answers}


def strike(faults: Sequence[Callable[[], object]], api: BatchApi, batch_id: str, num: int) -> None:
    """Let so many faults come at random moments while the batch runs."""
    draw = random.Random(num)
    for _, fault in zip(range(num), cycle(faults), strict=False):
        sleep(draw.uniform(0.0, 0.6))
        fault()
    need(api.show(batch_id)["status"] in ("validating", "in_progress"), "it runs up to the last fault")


@pytest.mark.parametrize(
    ("num_rows", "num_kills"), [(200, 9), pytest.param(2000, 50, marks=pytest.mark.slow)]
)
def test_kills_of_gateways_workers_and_redis_change_no_answer(
    num_rows: int, num_kills: int, endless: Path, tmp_path: Path, figures: list[str]
) -> None:
    rows, names = asked(num_rows), [f"c{n}" for n in range(num_rows)]
    with (
        DurableRedis() as server,
        deterministic_workers(2, server, endless, tmp_path) as workers,
        gateways(server.url, tmp_path) as found,
    ):
        whole = found.api.begin(rows)
        found.check_whole(whole, names, 300.0)
        torn = found.api.begin(rows)

        def kill_redis() -> None:
            with server.away(0.1):
                pass

        strike((found.kill, killing(workers), kill_redis), found.api, torn, num_kills)
        found.check_whole(torn, names, 300.0)
        assert texts(found.api, torn) == texts(found.api, whole)
    figures.append(f"batch over HTTP: {num_kills} kills, {num_rows} answers, none missing, none twice")
