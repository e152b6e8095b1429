"""A herd under test: one Redis, jobs, and workers that come and go."""

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from random import Random
from types import MappingProxyType, TracebackType
from typing import Any, Self

from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.webhooks.setup import store_webhooks
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.inquest import MAX_COMPARED, inquest
from tests.chaos.harness.jobs import Jobs
from tests.chaos.harness.listener import EventListener
from tests.chaos.harness.proxy import FaultProxy
from tests.chaos.harness.reference import Reference, ReferenceOutputs
from tests.chaos.harness.sabotage import Sabotage
from tests.chaos.harness.text_models import TEXT_SETTINGS, TextModels
from tests.chaos.harness.verdict import Verdict
from tests.local.tended_worker import TendedWorker

#: Slow enough that a fault meets a job of a few hundred tokens in its middle, fast enough for a short run.
STEP_S = 0.01

#: Longer than any run: its jobs are checked at the end.
LIFE_S = 7 * 24 * 3600

SETTINGS: dict[str, Any] = {
    "deterministic": True,
    "slots": 16,
    "kv_cache_tokens": 8192,
    "threads": 1,
    "stream_ttl_s": LIFE_S,
    "result_ttl_s": LIFE_S,
}

#: Where the ends of jobs would be told.
NOWHERE = "https://example.invalid/"

#: A worker's log event for a job that it takes away from a dead owner, and how the log names the job.
PUT_BACK = "job put back into the queue"
JOB_ID = re.compile('"job_id": ?"([^"]+)"')


class Herd:
    """Runs Redis' clients and workers; nothing of it outlives the block.

    with FragileRedis() as server, Herd(server, model, folder) as herd:
        herd.start_workers(2)
        herd.jobs.submit(10, {"max_tokens": 100})
        ...
        assert not herd.verdict().violations
    """

    def __init__(
        self,
        server: FragileRedis,
        model: Path,
        folder: Path,
        *,
        seed: int = 0,
        reference: ReferenceOutputs | None = None,
        text_models: TextModels = MappingProxyType({}),
        max_compared: int = MAX_COMPARED,
        **settings: Any,
    ) -> None:
        """Logs of workers go to `folder`; `seed` decides what faults choose at random.

        `reference`: the one of this model, if there is one already. `text_models`: each is served by a worker
        of its own. `max_compared`: how many outputs the verdict compares at most. `settings` override
        `SETTINGS` for all workers.
        """
        self.server = server
        self.proxy = FaultProxy(server.port)
        self.rng = Random(seed)
        # Named, so that nobody is warned of a job while the only worker of its model is gone.
        own = {"redis_url": server.url, "models": ",".join(text_models), **SETTINGS, **settings}
        self.settings = WorkerSettings.read(model=model, **own)
        self.queue = self.settings.queue
        self.jobs = Jobs(self.settings)
        self._folder = folder
        self._reference = reference
        self.text_models = text_models
        self._max_compared = max_compared
        self._workers: list[TendedWorker] = []
        self._numbers = count()
        self._listener = EventListener(self.settings.redis_url, self.jobs.ledger)
        self._stack = ExitStack()

    def separate_herd(self, server: FragileRedis, folder: Path, **settings: Any) -> "Herd":
        """Another herd of the same model, for a fault that needs a Redis of its own."""
        return Herd(server, self.settings.model, folder, reference=self._reference, **settings)

    def start_worker(
        self,
        *,
        step_s: float = STEP_S,
        sabotage: Sabotage | None = None,
        is_behind_proxy: bool = False,
        **settings: Any,
    ) -> TendedWorker:
        """Start a worker process and do not wait until it is ready. `settings` override the herd's."""
        name = f"{self.settings.served_model}-{next(self._numbers)}"
        if is_behind_proxy:
            settings["redis_url"] = self.proxy.url
        worker = TendedWorker(
            self.settings.model_copy(update=settings),
            f"{name}@chaos",
            self._folder / f"{name}.log",
            include="tests.chaos.harness.saboteur",
            env=(sabotage or Sabotage(step_s=step_s)).environment,
        )
        self._workers.append(worker)
        return worker.start()

    def start_workers(self, num_workers: int, **options: Any) -> list[TendedWorker]:
        """Start several and wait until all of them are ready."""
        return [
            self.wait_until_ready(worker)
            for worker in [self.start_worker(**options) for _ in range(num_workers)]
        ]

    @contextmanager
    def guest(self, **options: Any) -> Iterator[TendedWorker]:
        """A ready worker beside the others, which leaves at the end of the block."""
        guest = self.start_worker(**options)
        try:
            yield self.wait_until_ready(guest)
        finally:
            guest.stop()

    def wait_until_ready(self, worker: TendedWorker) -> TendedWorker:
        return worker.wait_until_ready(self.settings.redis_url)

    def replenish(self, num_workers: int) -> list[TendedWorker]:
        """Start workers until `num_workers` live, every other one behind the proxy; return the new ones."""
        started = []
        while len(self.alive) < num_workers:
            num_far = sum(worker.settings.redis_url == self.proxy.url for worker in self.alive)
            is_far = 2 * num_far < len(self.alive)
            started.append(self.start_worker(is_behind_proxy=is_far, **self._missing_model()))
        return started

    def _missing_model(self) -> dict[str, Any]:
        """Settings of a worker for a model with texts that none serves; of any other worker if all are."""
        served = {worker.settings.served_model for worker in self.alive}
        kind = next((kind for kind in self.text_models if kind not in served), None)
        return {} if kind is None else {"model": self.text_models[kind], "model_name": kind, **TEXT_SETTINGS}

    @property
    def put_back(self) -> Counter[str]:
        """How often each job was put back into the queue, by the workers' logs."""
        lines = (line for worker in self._workers for line in worker.log.splitlines() if PUT_BACK in line)
        return Counter(job_id for line in lines for job_id in re.findall(JOB_ID, line))

    @property
    def alive(self) -> list[TendedWorker]:
        return [worker for worker in self._workers if worker.is_alive]

    @property
    def killed(self) -> list[TendedWorker]:
        """Workers that ended as by kill -9 and were not returned by `take_ended` yet."""
        return [one for one in self._workers if one.process.poll() == -signal.SIGKILL]

    def take_ended(self) -> list[TendedWorker]:
        """The workers that have ended since the last call, which are then forgotten."""
        dead = [worker for worker in self._workers if not worker.is_alive]
        self._workers = [worker for worker in self._workers if worker not in dead]
        return dead

    @property
    def generators(self) -> list[TendedWorker]:
        """Those alive that serve the herd's own model."""
        return [worker for worker in self.alive if worker.settings.model == self.settings.model]

    def busiest(self) -> TendedWorker:
        """The generator with the most running jobs."""
        return max(self.generators, key=lambda worker: len(self.jobs.running(worker.name)))

    def state_of(self, worker: TendedWorker) -> str:
        """A worker's reported state; empty if it no longer reports."""
        return next((one.state for one in self.jobs.client.workers() if one.name == worker.name), "")

    def verdict(self) -> Verdict:
        """Wait until all jobs have ended, then check every law for each of them."""
        reference = self._reference or Reference(self.settings)
        return inquest(self.jobs, reference, self._listener, self.text_models, self._max_compared)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.proxy)
        # Nobody sends, so the webhook of each end stays in the outbox until it is checked.
        webhooks = store_webhooks(self.settings.tenant, NOWHERE, (), jobs=True, secret=None)
        run_dialogue(self.jobs.redis, webhooks)
        self._listener.start()
        self._stack.callback(self._listener.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        self._stack.close()
        self.jobs.close()
