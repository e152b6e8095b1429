"""A Redis and a worker for one run, on this machine; nothing of them outlives it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess, starting_worker
from llama_herd.tasks.settings import ACCESS
from llama_herd.worker.settings import WorkerSettings


class OwnHerd(NamedTuple):
    """The settings to reach it, and the worker, which may die."""

    settings: WorkerSettings
    worker: WorkerProcess


@contextmanager
def own_herd(settings: WorkerSettings) -> Iterator[OwnHerd]:
    """Start both, with everything but Redis as in `settings`."""
    with EmbeddedRedis() as server:
        own = {"redis_url": server.url, "model": settings.model.resolve()}
        settings = settings.model_copy(update=own | dict.fromkeys(("tenants", *ACCESS), ""))
        with starting_worker(settings, "own") as worker:
            yield OwnHerd(settings, worker)
