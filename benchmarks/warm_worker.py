"""A worker process with the bundled model, warm, with a Redis of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from benchmarks.shapes import PROMPTS
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.local.redis_server import EmbeddedRedis

COMMAND = (sys.executable, "-m", "celery", "-A", "llama_herd.tasks.app", "worker")


@dataclass(frozen=True)
class Queue:
    """The way to the worker."""

    url: str
    client: Client

    def tokens_per_s(self, num_jobs: int, sampling: SamplingParams) -> float:
        """From the first submission to the last end."""
        started_s = perf_counter()
        prompts = [PROMPTS[number % len(PROMPTS)] for number in range(num_jobs)]
        job_ids = [self.client.submit(prompt=prompt, sampling=sampling) for prompt in prompts]
        num_tokens = sum(len(self.client.result(job_id).ids) for job_id in job_ids)
        return num_tokens / (perf_counter() - started_s)


@contextmanager
def warm_worker(num_rows: int, sampling: SamplingParams, **env: str) -> Iterator[Queue]:
    """`env`: additional environment of the worker. Raises RuntimeError if it ends before it is ready."""
    with EmbeddedRedis() as server, Client(server.url) as client:
        env = {
            **os.environ,
            "HERD_DTYPE": "float32",
            **env,
            "HERD_REDIS_URL": server.url,
            "HERD_SLOTS": str(num_rows),
        }
        worker = subprocess.Popen(COMMAND, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _is_ready(worker, client), "the worker is ready")
            queue = Queue(server.url, client)
            queue.tokens_per_s(num_rows, sampling)
            yield queue
        finally:
            worker.terminate()
            worker.wait()


def _is_ready(worker: subprocess.Popen[bytes], client: Client) -> bool:
    if worker.poll() is not None:
        raise RuntimeError("the worker ended before it was ready")
    return any(one.state == "ready" for one in client.workers())
