"""The law of batches over HTTP: whoever is killed, each row has one line, and no row is lost."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import ForkedWorker
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.redis

#: A lease so short that another gateway takes over at once.
LEASE = {"HERD_GATEWAY_BATCH_LEASE_S": "0.6", "HERD_GATEWAY_GRACE_S": "0"}


class Gateways:
    """Some gateways on one storage, of which at least one is alive at any time."""

    def __init__(self, url: str, folder: Path, num: int) -> None:
        self._num_started = 0
        self._url, self._folder = url, folder
        self._alive = [self._started() for _ in range(num)]

    def _started(self) -> GatewayProcess:
        self._num_started += 1
        log = self._folder / f"gateway-{self._num_started}.log"
        files = {"HERD_GATEWAY_FILES": str(self._folder / "files"), **LEASE}
        return GatewayProcess(self._url, log, HERD_MODEL_NAME="tales", **files).__enter__()

    @property
    def url(self) -> str:
        return self._alive[-1].url

    def kill(self) -> None:
        """Kill the oldest one, and start another."""
        self._alive.pop(0).kill()
        self._alive.append(self._started())

    def close(self) -> None:
        for gateway in self._alive:
            gateway.kill()


@contextmanager
def gateways(url: str, folder: Path, num: int = 2) -> Iterator[Gateways]:
    with ExitStack() as stack:
        found = Gateways(url, folder, num)
        stack.callback(found.close)
        yield found


class Fault(Protocol):
    def __call__(self) -> object: ...


def check_whole(api: BatchApi, batch_id: str, names: Sequence[str], patience_s: float) -> None:
    """The batch ends with one line for each name."""
    batch = api.end_of(batch_id, patience_s)
    assert batch["status"] == "completed", batch["errors"]
    answers, errors = api.content(batch["output_file_id"]), api.content(batch["error_file_id"])
    assert Counter(one["custom_id"] for one in (*answers, *errors)) == Counter(names)
    assert not errors, errors[0]
    counts = {"total": len(names), "completed": len(names), "failed": 0}
    assert batch["request_counts"] == counts


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
        api = BatchApi(lambda: found.url)
        batch_id = api.begin(asked)
        for share in (0.05, 0.3, 0.6, 0.9):
            wait_until(lambda: len(worker.answered) >= share * len(asked), "some are answered")  # noqa: B023
            found.kill()
        check_whole(api, batch_id, [row["custom_id"] for row in asked], 60.0)
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
        api = BatchApi(lambda: found.url)
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
        check_whole(api, batch_id, [str(row["custom_id"]) for row in asked], 300.0)


class DurableRedis(FragileRedis):
    """One that keeps all that it has acknowledged, over its own death."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--appendfsync", "always"]
