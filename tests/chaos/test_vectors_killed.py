"""Gateways, commands, workers and Redis are killed: each text has its vector once, bit for bit."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import cycle
from pathlib import Path
from time import monotonic

import pytest

from llama_herd import Client
from llama_herd.model.shape.pooling import Pooling
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from tests.chaos.harness.patience import need
from tests.chaos.text_ways import HttpBatch, Jobs, Requests, TornCommand, VectorOf
from tests.cli.batch.killing import deterministic_workers, killing
from tests.durable_redis import DurableRedis
from tests.killed_gateways import gateways
from tests.model.tiny_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES
from tests.worker.text_engine import TextEngine

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(3000)]

PATIENCE_S = 2400.0
SLOTS = 32
#: Longer than Redis takes to read its file.
LEASE_S = 3.0


def texts_of(num: int) -> list[str]:
    """All different, of some lengths."""
    return [f"the llama {n}" + " in the herd" * (n % 3) for n in range(num)]


def undisturbed(model: Path, texts: Sequence[str]) -> VectorOf:
    """By the engine alone: no queue, no Redis, no worker."""
    found = dict[str, bytes]()
    with TextEngine(model, deterministic=True) as engine:
        for first in range(0, len(texts), MAX_TEXTS):
            lot = list(texts[first : first + MAX_TEXTS])
            found.update(zip(lot, (one.numpy().tobytes() for one in engine.vectors(lot)), strict=True))
    return found


def strike(faults: Sequence[Callable[[], object]], ways: Sequence[Future[None]], pause_s: float) -> int:
    """Let faults come until all is done, within this time of each other. Returns how many have come."""
    draw, num = random.Random(len(faults)), 0
    for fault in cycle(faults):
        if not wait(ways, draw.uniform(0.0, pause_s)).not_done:
            break
        fault()
        num += 1
    for way in ways:
        way.result()
    return num


@pytest.mark.parametrize(
    ("num_texts", "pause_s", "step_s"),
    [
        (300, 1.0, 0.05),
        pytest.param(2_000, 2.0, 0.0, marks=pytest.mark.slow),
        pytest.param(100_000, 8.0, 0.0, marks=pytest.mark.slow),
    ],
)
def test_kills_of_all_that_can_die_change_no_vector(
    num_texts: int, pause_s: float, step_s: float, tmp_path: Path, figures: list[str]
) -> None:
    family = TINY_FAMILIES["qwen3"]
    model = write_gguf(family, family.model(), tmp_path / "tales.gguf", Pooling.LAST)
    texts = texts_of(num_texts)
    half, most, end = num_texts // 2, num_texts * 8 // 10, num_texts * 9 // 10
    with (
        DurableRedis() as server,
        deterministic_workers(2, server, model, tmp_path, slots=SLOTS, step_s=step_s) as workers,
        gateways(server.url, tmp_path, lease_s=LEASE_S) as found,
        Client(server.url, model="tales") as client,
        ThreadPoolExecutor() as pool,
    ):

        def kill_redis() -> None:
            with server.away(0.1):
                pass
            server.wait_until_read()  # a gateway that starts before that ends
            server.rewrite_log()

        command = TornCommand(tmp_path, server.url, texts[half:most])
        jobs = Jobs(client, texts[most:end])
        ways = (HttpBatch(found, texts[:half]), command, jobs, Requests(found.api, texts[end:]))
        started_s = monotonic()
        running = [pool.submit(way.run, PATIENCE_S) for way in ways]
        num_kills = strike((found.kill, killing(workers), kill_redis, command.kill), running, pause_s)
        took_s = monotonic() - started_s
        vectors = undisturbed(model, texts)
        for way in ways:
            way.check(vectors)
    need(num_kills >= 4, "everything dies before it is over")
    met = f"{num_texts:,} texts, {num_kills} kills, {jobs.num_resumed} jobs resumed"
    figures.append(f"vectors: {met}, {num_texts / took_s:,.0f} texts/s; none lost, none twice, none other")
