"""What a worker takes for a model, beside the same worker with the bundled model."""

from functools import cache
from pathlib import Path

from benchmarks import process_figures
from benchmarks.jobs import greedy
from benchmarks.warm_worker import warm_worker
from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.sizes import BFLOAT16_BYTES, kv_bytes_per_token
from llama_herd.ops.settings import BUNDLED_MODEL

ROWS, CONTEXT_TOKENS = 32, 256
#: Of the cache these jobs touch a page each.
SAMPLING = greedy(PAGE_TOKENS // 2)


def worker_bytes_over_file(path: Path, config: LlamaConfig, threads: int) -> float:
    """How much more than the bundled model's worker it takes, but for the cache, in parts of the file."""
    kv_bytes = ROWS * PAGE_TOKENS * kv_bytes_per_token(config, BFLOAT16_BYTES)
    more_bytes = peak_bytes(path, threads) - peak_bytes(BUNDLED_MODEL, threads) - kv_bytes
    return more_bytes / path.stat().st_size


@cache
def peak_bytes(path: Path, threads: int) -> int:
    """The most memory of a worker that has run a full batch."""
    settings = {"model": path, "dtype": "auto", "threads": threads, "context_tokens": CONTEXT_TOKENS}
    with warm_worker(ROWS, SAMPLING, **settings) as queue:
        return process_figures.peak_bytes(queue.pid)
