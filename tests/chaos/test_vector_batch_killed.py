"""A batch of vectors whose command and workers are killed comes to what one undisturbed call does."""

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from llama_herd import Client
from llama_herd.model.shape.pooling import Pooling
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.killing import size
from tests.cli.herd_command import fork_herd
from tests.durable_redis import DurableRedis
from tests.local.processes import WorkerProcess
from tests.model.tiny_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.timeout(240)]

NUM, NUM_KILLS = 600, 4


def texts() -> list[str]:
    """Texts of all lengths, one of which no worker takes."""
    some = ["once upon a time there was a llama "[: 1 + number % 34] + str(number) for number in range(NUM)]
    some[100] = "once upon a time there was a llama " * 300
    return some


def has_grown(path: Path, num_bytes: int) -> bool:
    return size(path) > num_bytes


def test_a_killed_batch_of_vectors_is_that_of_one_call(tmp_path: Path, figures: list[str]) -> None:
    family = TINY_FAMILIES["qwen3"]
    model = write_gguf(family, family.model(), tmp_path / "embedder.gguf", Pooling.LAST)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts())
    (tmp_path / "in.jsonl").write_text(lines)
    progress = tmp_path / "out.npy.answers.jsonl"
    command = (
        "batch",
        "in.jsonl",
        "-o",
        "out.npy",
        "--embed",
        "--texts-per-job",
        "16",
        "--window",
        "6",
        "--model",
        "embedder",
    )

    with DurableRedis() as server, ExitStack() as stack, Client(server.url, model="embedder") as client:

        def start(number: int) -> WorkerProcess:
            worker = WorkerProcess(
                *(server.url, model, f"w{number}", tmp_path / f"{number}.log"),
                model_name="embedder",
                lease_ms=1000,
                deterministic=True,
                dtype="float32",
                threads=1,
                slots=4,
                kv_cache_tokens=2048,
            ).start()
            stack.callback(worker.kill)
            worker.wait_until_ready()
            return worker

        workers = [start(number) for number in range(2)]
        for number in range(NUM_KILLS):
            wanted = size(progress) + 4000
            with fork_herd(tmp_path, *command, HERD_REDIS_URL=server.url) as process:
                wait_until(partial(has_grown, progress, wanted), "rows are done")
                workers[number % 2].kill()
                process.kill()
                process.communicate()
            workers[number % 2] = start(number + 2)
        with fork_herd(tmp_path, *command, HERD_REDIS_URL=server.url) as process:
            output, _ = process.communicate()
        assert process.returncode == 1, output  # one text is too long
        good = [text for at, text in enumerate(texts()) if at != 100]
        expected = np.array(client.embed(good).vectors)
        found = np.load(tmp_path / "out.npy")
        assert np.isnan(found[100]).all()
        assert np.array_equal(np.delete(found, 100, 0), expected)
        assert len(progress.read_bytes().splitlines()) == len(good)
    figures.append(f"{NUM} rows over {NUM_KILLS} kills of command and worker: equal in each bit, each once")
