"""The law of batches over HTTP: whoever is killed, each row has one line, and no row is lost."""

import random
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Protocol

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.chaos.fragile_redis import FragileRedis
from llama_herd.chaos.patience import wait_until
from tests.batch_api import BatchApi, rows
from tests.cli.batch.killing import deterministic_workers
from tests.cli.killed_gateways import gateways
from tests.local.processes import ForkedWorker
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.redis


class Fault(Protocol):
    def __call__(self) -> object: ...


def strike(faults: Sequence[Fault], api: BatchApi, batch_id: str, num: int) -> None:
    """Let so many faults come at random moments while the batch runs."""
    draw = random.Random(num)
    for number in range(num):
        sleep(draw.uniform(0.0, 0.6))
        faults[number % len(faults)]()
    assert api.show(batch_id)["status"] in ("validating", "in_progress"), "it ended before the last fault"


@pytest.mark.long
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


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("num_rows", "num_kills"),
    [(200, 9), pytest.param(2000, 50, marks=pytest.mark.slow)],
)
def test_gateways_workers_and_redis_are_killed_at_random(
    num_rows: int, num_kills: int, tmp_path: Path
) -> None:
    """Redis writes each command out before it answers, as docs/batches.md asks for."""
    model = write_tiny_gguf(tmp_path / "tiny.gguf", eos=False, context_length=512)
    asked = [
        {"custom_id": f"c{n}", "prompt": f"the llama {n} ", "max_tokens": 20 + n % 40}
        for n in range(num_rows)
    ]
    with (
        DurableRedis() as server,
        deterministic_workers(2, server, model, tmp_path) as workers,
        gateways(server.url, tmp_path) as found,
    ):
        api = found.api
        batch_id = api.begin(asked)
        turn = iter(range(10**6))

        def kill_worker() -> None:
            worker: ForkedWorker = workers[next(turn) % len(workers)]
            worker.process.kill()
            worker.process.wait()
            worker.start()

        def kill_redis() -> None:
            with server.away(0.1):
                pass

        strike((found.kill, kill_worker, kill_redis), api, batch_id, num_kills)
        found.check_whole(batch_id, [str(row["custom_id"]) for row in asked], 300.0)


class DurableRedis(FragileRedis):
    """One that keeps all that it has acknowledged, over its own death."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--appendfsync", "always"]
