"""What a worker's log says while Redis is there but of no use: each thing once, however long that takes."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import WorkerProcess, wait_until
from tests.redis_errors import num_errors

pytestmark = [pytest.mark.redis, pytest.mark.worker]

#: So often Redis refuses the worker, which comes again at once or within two seconds.
NUM_REFUSALS = 40


@contextmanager
def replica(redis: Redis) -> Iterator[str]:
    redis.replicaof("127.0.0.1", "1")
    try:
        yield "READONLY"
    finally:
        redis.replicaof("no", "one")


@contextmanager
def alone(redis: Redis) -> Iterator[str]:
    redis.config_set("min-replicas-to-write", 1)
    try:
        yield "NOREPLICAS"
    finally:
        redis.config_set("min-replicas-to-write", 0)


Outage = Callable[[Redis], AbstractContextManager[str]]

#: What is told of each.
REASONS: dict[Outage, str] = {
    replica: "is a read-only replica. Fix: ",
    alone: "has fewer replicas than it asks for, and accepts no jobs. Fix: ",
}


@pytest.mark.parametrize("outage", REASONS)
def test_an_outage_is_told_once_with_its_fix(
    redis: Redis, redis_url: str, endless_settings: WorkerSettings, tmp_path: Path, outage: Outage
) -> None:
    log = tmp_path / "log"
    options: dict[str, Any] = {"held_by": tmp_path, "step_s": 0.02, "model_name": "m", "slots": 4}
    with (
        WorkerProcess(redis_url, endless_settings.model, "w", log, **options),
        Client(redis_url) as client,
    ):
        jobs = [client.submit(model="m", prompt="a", sampling={"max_tokens": 2500}) for _ in range(3)]
        wait_until(lambda: all(client.job(one).tokens > 5 for one in jobs), "all jobs have begun")
        before = len(log.read_bytes())
        redis.config_resetstat()
        with outage(redis) as code:
            wait_until(lambda: num_errors(redis, code) >= NUM_REFUSALS, "the worker was refused often")
            said = log.read_bytes()[before:].decode()
        done = {one: client.job(one).tokens for one in jobs}
        wait_until(lambda: all(client.job(one).tokens > n for one, n in done.items()), "all jobs go on")
    # The others are what kombu prints.
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [event for event, num in Counter(line["event"] for line in lines).items() if num > 1] == []
    assert any(REASONS[outage] in line.get("reason", "") for line in lines)
    assert "py.warnings" not in {line["logger"] for line in lines}
