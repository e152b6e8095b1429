"""The cost of a refused message, against its length: bytes that stay in Redis, and time of the worker.

    python -m benchmarks.refusals [--write]

Each message goes to a worker that does nothing else. What stays is the memory of all keys that it leaves: the
record, the event, Celery's result, a dead letter. The worker's time is that of its processor.
"""

import json
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from redis import Redis

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from llama_herd.chaos.malformed import base64_text, celery_message
from llama_herd.chaos.patience import wait_until
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.worker.settings import WorkerSettings

SIZES = (1_000, 32_000, 500_000, 1_900_000)
ROUNDS = 5
SMALL: dict[str, Any] = {"prompt": "a tale"}


def wrong_ids(num_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """A list with an error in each place."""
    return _body({**SMALL, "sampling": {"stop_token_ids": [-1] * (num_bytes * 3 // 4 // 4)}}), {}


def unknown_fields(num_bytes: int) -> tuple[bytes, dict[str, Any]]:
    return _body({**SMALL, **{f"f{number:06}": 1 for number in range(num_bytes * 3 // 4 // 14)}}), {}


def long_prompt(num_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """Longer than a prompt may be, or than the context."""
    return _body({"prompt": "word " * (num_bytes * 3 // 4 // 5), "colour": "blue"}), {}


def long_links(num_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """A job with an error, and links that would be kept for a retry."""
    links = [{"task": "x" * 900, "args": [], "kwargs": {}}] * (num_bytes * 3 // 4 // 950)
    return _body({"colour": "blue"}, {"callbacks": links}), {}


def bomb(num_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """A compressed message that unpacks to a thousand times its length."""
    packed = zlib.compress(b"0" * (num_bytes * 3 // 4 * 1000 // 1029))
    return packed, {"compression": "zlib"}


KINDS: dict[str, Callable[[int], tuple[bytes, dict[str, Any]]]] = {
    "wrong ids": wrong_ids,
    "unknown fields": unknown_fields,
    "long prompt": long_prompt,
    "long links": long_links,
    "compressed": bomb,
}


@dataclass(frozen=True)
class Cost:
    """The cost of one message."""

    kind: str
    num_bytes: int
    kept_bytes: int
    worker_ms: float


def measure() -> Report:
    costs = []
    with (
        tempfile.TemporaryDirectory(prefix="herd-refusals-") as folder,
        EmbeddedRedis() as server,
        Redis.from_url(server.url) as redis,
    ):
        settings = WorkerSettings.read(redis_url=server.url, slots=4)
        with WorkerProcess(settings, "refusals@benchmark", Path(folder) / "log") as worker:
            process = psutil.Process(worker.process.pid)
            for kind, make in KINDS.items():
                for size in SIZES:
                    costs.append(_cost(redis, process, settings.queue, kind, *make(size)))
    return {"benchmark": "refusals", "costs": [asdict(cost) for cost in costs], "conditions": conditions()}


def _cost(
    redis: Redis, process: psutil.Process, queue: str, kind: str, body: bytes, headers: dict[str, Any]
) -> Cost:
    """The median of some messages that differ in nothing but their ids."""
    costs = [_cost_of_one(redis, process, queue, body, headers) for _ in range(ROUNDS)]
    num_bytes, kept, time_s = (median(part) for part in zip(*costs, strict=True))
    return Cost(kind, int(num_bytes), int(kept), round(1000 * time_s, 1))


def _cost_of_one(
    redis: Redis, process: psutil.Process, queue: str, body: bytes, headers: dict[str, Any]
) -> tuple[int, int, float]:
    job_id, ledger = str(uuid.uuid4()), Ledger()
    raw = celery_message(raw_body=base64_text(body), id=job_id, **headers)
    before_bytes, before_s = _num_bytes(redis), _time_s(process)
    redis.lpush(queue, raw)
    wait_until(lambda: redis.exists(ledger.result_key(job_id)), "Celery's result")
    wait_until(lambda: not redis.hlen(ledger.unacked_key), "the acknowledgement")
    spent_s = _time_s(process) - before_s
    record = run_call(redis, ledger.record(job_id))
    if record is not None and record.state != "failed":
        raise RuntimeError(f"the job is {record.state}, it should have been refused")
    return len(raw), _num_bytes(redis) - before_bytes, spent_s


def _body(fields: dict[str, Any], embed: dict[str, Any] | None = None) -> bytes:
    return json.dumps([[], fields, embed or {}]).encode()


def _num_bytes(redis: Redis) -> int:
    """Memory of all keys."""
    return sum(redis.memory_usage(key, samples=0) or 0 for key in redis.scan_iter(count=1000))


def _time_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def tables(report: Report) -> Iterator[Table]:
    rows = [
        [cost["kind"], cost["num_bytes"], cost["kept_bytes"], cost["worker_ms"]] for cost in report["costs"]
    ]
    yield Table(["message", "bytes", "bytes kept in Redis", "worker ms"], rows)


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or "")
