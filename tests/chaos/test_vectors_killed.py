"""Workers that embed are killed: each text has its vector once, and it is that of an undisturbed run."""

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llama_herd import Client, EmbeddingJob, End, Started, Vectors
from llama_herd.model.shape.pooling import Pooling
from tests.chaos.harness.patience import wait_until
from tests.durable_redis import DurableRedis
from tests.local.processes import WorkerProcess
from tests.model.tiny_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.timeout(180)]

NUM_JOBS, NUM_TEXTS, NUM_KILLS = 8, 40, 3


def texts_of(number: int) -> tuple[str, ...]:
    drawn = random.Random(number)
    return tuple("once upon a time there was a llama "[: drawn.randint(1, 35)] for _ in range(NUM_TEXTS))


def num_done(client: Client, job_ids: Iterable[str]) -> int:
    """Vectors on record."""
    return sum(client.history(job_id).record.n for job_id in job_ids)


def has_done(client: Client, job_ids: Iterable[str], wanted: int) -> bool:
    return num_done(client, job_ids) > wanted


def test_workers_are_killed_and_each_text_has_its_vector_once(tmp_path: Path, figures: list[str]) -> None:
    family = TINY_FAMILIES["qwen3"]
    model = write_gguf(family, family.model(), tmp_path / "embedder.gguf", Pooling.LAST)
    exact: dict[str, Any] = {
        "deterministic": True,
        "dtype": "float32",
        "threads": 1,
        "slots": 4,
        "kv_cache_tokens": 2048,
    }
    jobs = {f"job-{number}": texts_of(number) for number in range(NUM_JOBS)}

    with DurableRedis() as server, Client(server.url, model="embedder") as client:

        def start(number: int) -> WorkerProcess:
            log = tmp_path / f"{number}.log"
            return WorkerProcess(
                server.url,
                model,
                f"w{number}",
                log,
                model_name="embedder",
                lease_ms=1000,
                held_by=tmp_path,
                step_s=0.03,
                **exact,
            ).start()

        workers = [start(number) for number in range(2)]
        try:
            for job_id, texts in jobs.items():
                client.submit(EmbeddingJob(texts=texts), job_id=job_id)
            for number in range(NUM_KILLS):
                wanted = num_done(client, jobs) + NUM_TEXTS // 2
                wait_until(partial(has_done, client, jobs, wanted), "some texts are done")
                workers.pop(0).kill()
                workers.append(start(number + 2))
            streams = {job_id: list(client.stream(job_id, timeout_s=90)) for job_id in jobs}
            results = {job_id: client.result(job_id) for job_id in jobs}
            whole = {job_id: client.embed(texts, timeout_s=60).vectors for job_id, texts in jobs.items()}
        finally:
            for worker in workers:
                worker.kill()
    num_resumed = 0
    for job_id, events in streams.items():
        told = [number for event in events if isinstance(event, Vectors) for number in event.texts]
        assert sorted(told) == list(range(NUM_TEXTS))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [isinstance(event, End) for event in events].count(True) == 1
        num_resumed += sum(isinstance(event, Started) and event.attempt > 1 for event in events)
        assert results[job_id].floats == whole[job_id]
    assert num_resumed
    met = f"{NUM_JOBS * NUM_TEXTS} texts, {NUM_KILLS} kills, {num_resumed} jobs resumed"
    figures.append(f"{met}: each vector once")
