"""A batch that is killed at given bytes of its output, while its workers are killed, too."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import psutil

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.batch_command import Answer, BatchCommand
from tests.local.processes import ForkedWorker, standstill

#: All that it takes for equal texts: the same seeds, and a mode that knows no batch mates.
OPTIONS = ("--seed", "7")

SLOTS = 8


@contextmanager
def deterministic_workers(
    num: int,
    server: EmbeddedRedis,
    model: Path,
    folder: Path,
    *,
    slots: int = SLOTS,
    step_s: float = 0.0,
    lease_ms: int = 600,
) -> Iterator[list[ForkedWorker]]:
    """Workers that take a dead one's jobs over soon, and hold no death against a job: no job kills here.

    Who wants faults in the midst of jobs may hold them up, by the same folder, or let steps last.
    """
    settings = WorkerSettings(
        redis_url=server.url,
        model=model,
        model_name="tales",
        slots=slots,
        deterministic=True,
        lease_ms=lease_ms,
        max_deaths=100,
    )
    may_be_held = standstill(folder, step_s)
    workers = [ForkedWorker(settings, f"w{n}@batch", folder / f"w{n}.log", **may_be_held) for n in range(num)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready()
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def killing(workers: Sequence[ForkedWorker]) -> Callable[[], None]:
    """What kills one of the workers after the other, and starts it again."""
    next_worker = cycle(workers)

    def kill() -> None:
        worker = next(next_worker)
        worker.process.kill()
        worker.process.wait()
        worker.start()

    return kill


def long_rows(num: int) -> list[Answer]:
    """Rows of some length, about one in five of which is bad."""
    rows: list[Answer] = [
        {"custom_id": f"c{n}", "prompt": f"the llama {n} ", "max_tokens": 20 + n % 40} for n in range(num)
    ]
    return [row | {"colour": "blue"} if n % 5 == 4 else row for n, row in enumerate(rows)]


def run_with_kills(command: BatchCommand, workers: Sequence[ForkedWorker], offsets: Sequence[int]) -> None:
    """Run to the end; at each offset kill command and a worker, and tear both files: the output there."""
    for number, offset in enumerate(offsets):
        with command.start(*OPTIONS) as process:
            wait_until(
                lambda: size(command.output) >= offset or process.poll() is not None,  # noqa: B023
                f"byte {offset} of {command.output}",
            )
            worker = workers[number % len(workers)]
            worker.process.kill()
            process.kill()
            process.communicate()
        worker.process.wait()
        if size(command.output) > offset:
            os.truncate(command.output, offset)
        if size(command.errors) > 9:
            os.truncate(command.errors, size(command.errors) - 9)
        worker.start()
    assert command.run(*OPTIONS).exit_code == 1


def random_offsets(num_bytes: int, num: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(1, num_bytes), num))


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def children_of(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
