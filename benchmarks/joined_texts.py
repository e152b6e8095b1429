"""`herd batch --embed`: what it costs when short texts share jobs, with a worker that computes nothing.

    python -m benchmarks.joined_texts [--write]

The worker is a process of its own, with all but a model: its vectors have 64 numbers. Calls and microseconds
are Redis' own, from its command statistics, for the whole run divided by the rows; commands of scripts count.
Bytes are what Redis has more once such jobs have ended and nobody has deleted them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from benchmarks.batch import run_batch
from benchmarks.harness import Benchmark, main
from benchmarks.report import Row, Table
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.testing import FakeHerd

MODEL = "tales"


@dataclass(frozen=True)
class Plan:
    rows: int = 20_000
    texts_per_job: tuple[int, ...] = (1, 8, 64, 256)
    slots: int = 256
    kept_rows: int = 2048


def measure(plan: Plan) -> Iterator[Table]:
    with TemporaryDirectory() as folder, FakeHerd([MODEL], slots=plan.slots) as herd:
        rows = [run(plan, num, herd.url, Path(folder)) for num in plan.texts_per_job]
    yield Table(rows, f"{plan.rows:,} rows of some words")


def run(plan: Plan, texts_per_job: int, url: str, folder: Path) -> Row:
    """One run of the command, and what it asked of Redis."""
    lines = (json.dumps({"text": f"{number} llamas spit at {number} alpacas"}) for number in range(plan.rows))
    (folder / "in.jsonl").write_text("\n".join(lines))
    options = ("--embed", "--model", MODEL, "--texts-per-job", str(texts_per_job))
    with Redis.from_url(url) as redis:
        redis.config_resetstat()
        found = run_batch(url, folder, *options)
        stats = redis.info("commandstats").values()
    for path in folder.iterdir():
        path.unlink()
    if found.summary["num_done"] != plan.rows:
        raise RuntimeError(f"{found.summary['num_done']} of {plan.rows} rows are done")
    most = found.memory.most
    texts = [f"{number} llamas spit" for number in range(plan.kept_rows)]
    return {
        "texts a job": texts_per_job,
        "rows/s": found.summary["rows_per_s"],
        "Redis, commands a row": sum(one["calls"] for one in stats) / plan.rows,
        "Redis, µs a row": sum(one["usec"] for one in stats) / plan.rows,
        "Redis, bytes a vector": kept_bytes(url, texts, texts_per_job) / plan.kept_rows,
        "Redis, most MB": most.redis_bytes / 1e6,
        "command, most MB": most.command_bytes / 1e6,
    }


def kept_bytes(url: str, texts: Sequence[str], texts_per_job: int) -> int:
    """What the ended jobs of texts take of Redis' memory; they are deleted then."""
    starts = range(0, len(texts), texts_per_job)
    jobs = [EmbeddingJob(texts=tuple(texts[at : at + texts_per_job]), model=MODEL) for at in starts]
    with Client(url) as client, Redis.from_url(url) as redis:
        before = redis.info("memory")["used_memory_dataset"]
        job_ids = [one.job_id for one in client.submit_many(jobs)]
        for job_id in job_ids:
            client.result(job_id, wait=True).raise_for_error()
        after = redis.info("memory")["used_memory_dataset"]
        for job_id in job_ids:
            client.purge(job_id)
    return int(after) - int(before)


BENCHMARK = Benchmark("joined_texts", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
