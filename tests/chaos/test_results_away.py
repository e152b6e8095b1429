"""The results' own Redis is killed again and again, and workers in turn: all ends are told there."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult
from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.worker.jobs.finisher import NUM_THREADS
from tests.chaos.harness.faults.long_waits import SOON_LOST
from tests.chaos.harness.patience import wait_until
from tests.durable_redis import DurableRedis
from tests.local.processes import WorkerProcess
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.timeout(180)]

QUEUE = queue_name("m")
JOB: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 6}}
NUM_ROUNDS, CHORDS_A_ROUND, PARTS = 8, 5, 3


def num_left(root: Any) -> int:
    """Messages, jobs that wait or run, and results that are owed."""
    num_messages = root.llen(QUEUE) + sum(root.hlen(key) for key in root.keys("herd:*unacked"))
    return int(num_messages + sum(root.zcard(Ledger().key(name)) for name in ("pending", "leases", "owed")))


def unsettled(root: Any, ids: list[str]) -> list[str]:
    """Jobs of whose end Celery has not heard. Of their messages, those that a worker takes are in no list."""
    return [job_id for job_id in ids if not root.hexists(Ledger().job_key(job_id), "settled")]


def sent_to(root: Any, queue: str) -> Counter[str]:
    """How often each task was sent into a list that nobody reads, by the id that the sender gave it."""
    return Counter(json.loads(message)["headers"]["id"] for message in root.lrange(queue, 0, -1))


class Shop:
    """Sends jobs that are parts of chords, each with a link, by Celery."""

    def __init__(self, broker_url: str, results_url: str) -> None:
        self.app = Celery("shop", broker=broker_url, backend=results_url, set_as_current=False)
        self._sender = Celery("sender", broker=broker_url, set_as_current=False)  # needs no results to send
        self.chords = [f"chord-{number}" for number in range(NUM_ROUNDS * CHORDS_A_ROUND)]
        self.parts = {f"{name}-{place}": (name, place) for name in self.chords for place in range(PARTS)}
        for name in self.chords:
            self.app.backend.set_chord_size(name, PARTS)

    def send(self, job_id: str) -> None:
        name, place = self.parts[job_id]
        body = self.app.signature("shop.then", queue="bodies", task_id=name)
        link = self.app.signature("shop.next", queue="links", task_id=f"after-{job_id}")
        options = {"group_id": name, "group_index": place, "chord": body, "link": link}
        self._sender.send_task(TASK_NAME, kwargs=JOB, queue=QUEUE, task_id=job_id, **options)


@pytest.mark.parametrize("kills_workers", [False, True], ids=["results", "workers too"])
def test_kills_of_the_results_redis_and_of_workers_lose_no_result(
    tmp_path: Path, figures: list[str], kills_workers: bool
) -> None:
    """A worker that is killed may have sent a link or a body that it could not note: nothing else may."""
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    num_kills = NUM_ROUNDS // 2 if kills_workers else 0
    with DurableRedis() as server, DurableRedis() as results, Redis.from_url(server.url) as found:
        root: Any = found

        def start(number: int) -> WorkerProcess:
            log = tmp_path / f"{number}.log"
            options: dict[str, Any] = {"model_name": "m", "slots": 4, "kv_cache_tokens": 1024, "threads": 1}
            options |= {"result_url": results.url, "lease_ms": 1000, **SOON_LOST}
            return WorkerProcess(server.url, model, f"w{number}", log, **options).start()

        def has_told(num_lost: int) -> bool:
            return len(unsettled(root, ids)) <= num_lost and num_left(root) == 0

        shop = Shop(server.url, results.url)
        workers, ids = [start(number) for number in range(2)], list(shop.parts)
        try:
            for number in range(NUM_ROUNDS):
                for job_id in ids[number * PARTS * CHORDS_A_ROUND :][: PARTS * CHORDS_A_ROUND]:
                    shop.send(job_id)
                if kills_workers and number % 2:
                    workers.pop(0).kill()
                    workers.append(start(number + 2))
                with results.away(0.7):
                    pass
            wait_until(lambda: has_told(num_kills), "every end is told")
            for job_id in unsettled(root, ids):  # lost in the one gap of a bare message
                shop.send(job_id)
            wait_until(lambda: has_told(0), "every end is told")
        finally:
            for worker in workers:
                worker.kill()
        states = {job_id: AsyncResult(job_id, app=shop.app).state for job_id in ids}
        bodies, links = sent_to(root, "bodies"), sent_to(root, "links")
        logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert {*states.values()} == {"SUCCESS"}
    for sent, wanted in ((bodies, {*shop.chords}), (links, {f"after-{job_id}" for job_id in ids})):
        assert sent.keys() == wanted
        assert sent.total() - len(wanted) <= num_kills * NUM_THREADS
    num_owed = logs.count("job's result is owed")
    assert num_owed
    twice = sum(sent.total() - len(sent) for sent in (bodies, links))
    ends = f"{len(ids)} ends told, {num_owed} late, {len(shop.chords)} chords"
    figures.append(
        f"results away {NUM_ROUNDS} times, {num_kills} kills: {ends}, {twice} links or bodies twice"
    )
