"""How many threads a model's arithmetic gets on a CPU."""

import os

from llama_herd.worker.settings import WorkerSettings


def num_threads(settings: WorkerSettings) -> int:
    """HERD_THREADS, or one less than the cores that this process may use."""
    return settings.threads or max(1, len(os.sched_getaffinity(0)) - 1)
