"""A worker process, warm, with a Redis of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.jobs import prompts
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.settings import WorkerSettings
from tests.local.tended_worker import TendedWorker


@dataclass(frozen=True)
class Queue:
    """The way to the worker."""

    url: str
    client: Client
    pid: int  # of the worker

    def tokens_per_s(self, num_jobs: int, sampling: SamplingParams) -> float:
        """From the first submission to the last end, with an event for each step."""
        started_s, client = perf_counter(), self.client
        job_ids = [client.submit(prompt=one, sampling=sampling, flush_ms=0) for one in prompts(num_jobs)]
        num_tokens = sum(len(client.result(job_id).ids) for job_id in job_ids)
        return num_tokens / (perf_counter() - started_s)


@contextmanager
def warm_worker(num_rows: int, sampling: SamplingParams, **changes: object) -> Iterator[Queue]:
    """`changes` are fields of its WorkerSettings; without them it has the bundled model.

    Raises WorkerDied if it ends before it is ready.
    """
    with EmbeddedRedis() as server, TemporaryDirectory() as folder:
        fields = {**changes, "redis_url": server.url, "slots": num_rows}
        settings = WorkerSettings.read(**fields)
        with (
            TendedWorker(settings, "warm@benchmark", Path(folder) / "log") as worker,
            Client(server.url, model=settings.served_model) as client,
        ):
            queue = Queue(server.url, client, worker.process.pid)
            queue.tokens_per_s(num_rows, sampling)
            yield queue
