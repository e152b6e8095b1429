"""A herd to be tortured: one Redis, workers that come and go, and what must hold of its jobs afterwards."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.call import run
from llama_herd.tasks.client import Client
from llama_herd.tasks.connection import connect
from llama_herd.tasks.events import Event, Token
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.result import Result
from llama_herd.worker.local import LocalJob
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.checker import Checker
from tests.worker.processes import WorkerProcess, wait_until

#: How long the end of a job may take on a busy machine, faults and patience of the sweep included.
PATIENCE_S = 60.0
#: So slow that a job of a few hundred tokens is met in its middle, so fast that a test is short.
STEP_S = 0.01
#: kombu's backstop takes a message that is held longer than this for lost.
VISIBILITY_S = 30

SAMPLED = {"max_tokens": 200, "temperature": 0.8, "seed": 11}
GREEDY = {"max_tokens": 200, "temperature": 0.0, "seed": 11}


class Listener(threading.Thread):
    """A subscriber to all jobs, by pub/sub alone: it hears what it hears."""

    def __init__(self, url: str) -> None:
        super().__init__(name="listener", daemon=True)
        self.heard: dict[str, list[str]] = defaultdict(list)
        self._redis = Redis.from_url(url)
        self._is_stopping = threading.Event()
        self._is_subscribed = threading.Event()

    def start(self) -> None:
        super().start()
        assert self._is_subscribed.wait(PATIENCE_S)

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def run(self) -> None:
        while not self._is_stopping.is_set():
            with suppress(RedisError):
                self._listen()
            sleep(0.05)

    def _listen(self) -> None:
        with self._redis.pubsub() as pubsub:  # type: ignore[no-untyped-call]
            pubsub.psubscribe("herd:default:tokens:*")
            while not self._is_stopping.is_set():
                message = pubsub.get_message(timeout=0.1)
                if message is not None and message["type"] == "psubscribe":
                    self._is_subscribed.set()
                elif message is not None:
                    self.heard[message["channel"].decode().rpartition(":")[2]].append(
                        message["data"].decode()
                    )


class Herd:
    """Jobs and workers of one model, through the Redis at `url`; workers may reach it by another way."""

    def __init__(self, url: str, model: Path, folder: Path) -> None:
        self.url = url
        self.ledger = Ledger()
        self.redis: Any = connect(url, tries=20)  # redis-py types each reply as text or bytes or nothing
        self.client = Client(url, model=model.stem)
        self.job_ids: list[str] = []
        self._model = model
        self._folder = folder
        self._workers: list[WorkerProcess] = []
        self._listener = Listener(url)

    def worker(
        self,
        *,
        url: str = "",
        sabotage: str = "",
        step_s: float = STEP_S,
        visibility_s: int = VISIBILITY_S,
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker process; it is not ready yet."""
        name = f"{self._model.stem}-{len(self._workers)}"
        settings = {"slots": 8, "deterministic": True, "kv_cache_tokens": 8192, "threads": 1, **settings}
        worker = WorkerProcess(
            url or self.url,
            self._model,
            name,
            self._folder / f"{name}.log",
            include="tests.chaos.sabotage",
            env={
                "SABOTAGE": sabotage,
                "SABOTAGE_STEP_S": str(step_s),
                "SABOTAGE_VISIBILITY_S": str(visibility_s),
            },
            **settings,
        )
        self._workers.append(worker)
        return worker.start()

    def workers(self, num_workers: int, **options: Any) -> list[WorkerProcess]:
        """Start several and wait until all of them are ready."""
        return [self.ready(worker) for worker in [self.worker(**options) for _ in range(num_workers)]]

    def ready(self, worker: WorkerProcess) -> WorkerProcess:
        return worker.wait_until_ready(self.url)

    def state_of(self, worker: WorkerProcess) -> str:
        """What a worker says of itself; empty when it says nothing any more."""
        return next((one.state for one in self.client.workers() if one.name == worker.name), "")

    # Jobs

    def submit(
        self, num_jobs: int, sampling: dict[str, Any] = SAMPLED, *, prefix: str = "job", **fields: Any
    ) -> list[str]:
        """Submit jobs whose ids say their prompts."""
        job_ids = [f"{prefix}-{self._model.stem}-{len(self.job_ids) + number}" for number in range(num_jobs)]
        for job_id in job_ids:
            self.client.submit(job_id=job_id, prompt=f"tale of {job_id}", sampling=sampling, **fields)
        self.job_ids += job_ids
        return job_ids

    def events(self, job_id: str) -> list[Event]:
        """What stands in the stream now."""
        return list(Checker(self.redis, self.ledger).evidence(job_id).events)

    def num_tokens(self, job_id: str) -> int:
        return int(self.redis.hget(self.ledger.job_key(job_id), "n") or 0)

    def epoch(self, job_id: str) -> int:
        return int(self.redis.hget(self.ledger.job_key(job_id), "epoch") or 0)

    def wait_for_epoch(self, job_ids: Sequence[str], epoch: int) -> None:
        """Wait until these jobs have been claimed so often."""
        wait_until(lambda: all(self.epoch(job_id) >= epoch for job_id in job_ids), f"claim {epoch}")

    def wait_for_tokens(self, job_ids: Sequence[str], num_tokens: int = 1) -> None:
        wait_until(
            lambda: all(self.num_tokens(job_id) >= num_tokens for job_id in job_ids),
            f"{num_tokens} tokens of {len(job_ids)} jobs",
        )

    def wait_for_progress(self, job_ids: Sequence[str], num_tokens: int = 1) -> None:
        """Wait until each job has some more tokens than now, or has ended on the way."""
        before = {job_id: self.num_tokens(job_id) for job_id in job_ids}
        wait_until(
            lambda: all(
                self.num_tokens(job_id) >= n + num_tokens or self.has_ended(job_id)
                for job_id, n in before.items()
            ),
            f"{num_tokens} more tokens of {len(job_ids)} jobs",
        )

    def has_ended(self, job_id: str) -> bool:
        record = run(self.redis, self.ledger.record(job_id))
        return record is not None and record.is_final

    def results(self, job_ids: Sequence[str] | None = None) -> list[Result]:
        """Wait for the end of these jobs, by default of all."""
        job_ids = self.job_ids if job_ids is None else job_ids
        return [self.client.result(job_id, timeout_s=PATIENCE_S) for job_id in job_ids]

    def uninterrupted(self, prompt: str, sampling: dict[str, Any]) -> tuple[int, ...]:
        """The ids of this job when nothing disturbs it and nobody shares its batch."""
        settings = WorkerSettings(model=self._model, deterministic=True, threads=1, kv_cache_tokens=1024)
        events = LocalJob.load({"prompt": prompt, "sampling": sampling}, settings).events()
        return tuple(token_id for event in events if isinstance(event, Token) for token_id in event.ids)

    # Afterwards

    def check(self) -> None:
        """Wait until all is over, then hold every law to all jobs. A worker must be there to clean up."""
        self.results()
        checker = Checker(self.redis, self.ledger)
        wait_until(lambda: not self._leftovers(checker), f"nothing left but {checker.leftovers()}")
        faults = checker.faults(self.job_ids, self._listener.heard)
        assert not faults, "\n".join(faults)

    def _leftovers(self, checker: Checker) -> list[str]:
        """What is left, messages of dead workers having been held for so long that the backstop sees them."""
        index = f"{self.ledger.unacked_key}_index"
        for tag, score in self.redis.zrange(index, 0, -1, withscores=True):
            self.redis.zadd(index, {tag: score - VISIBILITY_S}, xx=True)
        return checker.leftovers()

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        self._listener.stop()
        self.client.close()
        self.redis.close()
