"""Workers without a model, many in one process: everything of a worker that talks to Redis, at its pace.

    python -m benchmarks.simulated_workers '{"url": "redis://127.0.0.1:6379/0", "num": 10}'

Heartbeat, sweeper, overflow, publisher, revoker and watchdog are the worker's own. In the place of the engine
each row brings a token at each step, with the time in its text. In Celery's place a thread asks for messages.
It prints a line once all are up, and ends when its input does.
"""

import json
import os
import resource
import sys
from dataclasses import dataclass
from threading import Thread
from time import monotonic, sleep
from typing import Any, cast
from uuid import uuid4

from celery import Celery
from redis import Redis

from llama_herd.tasks.connection import connect
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.message import Envelope, queue_name
from llama_herd.tasks.priority import LANES
from llama_herd.tasks.worker_status import WorkerStatus
from llama_herd.worker.engine.sampling.row import SampledToken
from llama_herd.worker.engine.sequence_info import SequenceInfo
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.claims import ClaimedJobs
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog, RecordedOutputs
from llama_herd.worker.jobs.eviction import EvictionWatch
from llama_herd.worker.jobs.heartbeat import Heartbeat
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.publisher import Publisher
from llama_herd.worker.jobs.revoker import Revoker
from llama_herd.worker.jobs.stream_bounds import StreamBounds
from llama_herd.worker.jobs.stream_reader import StreamReader
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.sweeper import Sweeper
from llama_herd.worker.jobs.tenancy import LeaseHolder, Tenancies, Tenancy
from llama_herd.worker.jobs.watchdog import Watchdog
from llama_herd.worker.settings import WorkerSettings

MODEL = "simulated"
BOUNDS = StreamBounds(4096, 4096)
#: How long kombu waits for a message before it asks again.
POLL_S = 1
#: Many workers share few cores here: what would be a Redis that is away is a machine that is slow.
PATIENCE_S = 60.0
#: Between the starts of two workers, whose threads all begin with a connection.
BETWEEN_S = 0.02


@dataclass(frozen=True)
class Plan:
    """What a process of workers does. Rates are those of each row."""

    url: str
    num: int
    first: int = 0
    tenants: int = 1
    rows: int = 0
    tokens_per_s: float = 20.0
    flush_ms: int = 50
    #: Whether they also do what costs a worker something beside its events.
    has_parts: bool = True

    @property
    def settings(self) -> WorkerSettings:
        names = ",".join(f"t{number}" for number in range(self.tenants)) if self.tenants > 1 else ""
        slots = max(self.rows, 1)
        return WorkerSettings.read(redis_url=self.url, tenants=names, model_name=MODEL, slots=slots)


class StandInEngine:
    """Is never stalled, and ends nothing."""

    def is_stalled(self, _: float) -> bool:
        return False

    def abort(self, *_: object) -> None:
        """Nothing runs here."""


class SimulatedWorker:
    """One worker, and its threads."""

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan = plan
        self._redis = connect(plan.url, tries=1, timeout_s=PATIENCE_S)
        self._polls = connect(plan.url, tries=1, timeout_s=PATIENCE_S)
        self._name = f"worker{number}@{MODEL}"
        self._owner = uuid4().hex
        self._settings = plan.settings
        self.tenancies = Tenancies(map(self._tenancy, self._settings.by_queue.values()))
        self.publisher = Publisher(
            self._redis,
            self._owner,
            self.tenancies,
            on_start=lambda attempt: None,
            on_end=lambda attempt: None,
            on_lost=lambda attempt: None,
            on_released=lambda attempt: None,
        )
        self._rows: list[SequenceInfo] = []

    def _tenancy(self, own: WorkerSettings) -> Tenancy:
        ledger = Ledger.from_settings(own, self._name)
        return Tenancy(
            own,
            LeaseHolder(self._redis, ledger, self._owner),
            ClaimedJobs(),
            StreamReader(self._redis, ledger, BOUNDS),
            EventAuthor(self._name, MODEL, own.tenant),
            cast(Celery, None),
        )

    def start(self) -> None:
        self.publisher.start()
        if self._plan.has_parts:
            for thread in self._parts():
                thread.start()

    def _parts(self) -> list[Thread]:
        overflow = Overflow(
            self.tenancies, gate=SuspectGate(), pause=lambda *_: None, on_released=lambda _: None
        )
        engine = cast(EngineThread, StandInEngine())
        ledger, queues = self.tenancies.first.ledger, self.tenancies.queues
        return [
            Heartbeat(
                self._redis, self._owner, self.tenancies, engine=engine, status=self._status, stall_s=30.0
            ),
            Sweeper(self._redis, self.tenancies, overflow),
            Revoker(
                self._redis,
                self._name,
                self.tenancies,
                on_cancelled=lambda *_: None,
                max_message_bytes=65_536,
                replies=lambda _: False,
            ),
            Watchdog(self._redis, ledger, queues, 15.0, EvictionWatch(self._redis, lambda: None)),
            Thread(target=self._poll, daemon=True),
        ]

    def _status(self, _: str) -> WorkerStatus:
        return WorkerStatus(
            name=self._name,
            state="ready",
            model=MODEL,
            device="none",
            slots=self._settings.slots,
            running=len(self._rows),
        )

    def _poll(self) -> None:
        """Ask for messages, as Celery's consumer does."""
        lists = [queue + lane for queue in self.tenancies.queues for lane in LANES]
        while True:
            cast(Any, self._polls).brpop(lists, timeout=POLL_S)

    def begin(self) -> None:
        """Take jobs in hand, one for each row, of each tenant in turn."""
        tenancies = list(self.tenancies)
        for row in range(self._plan.rows):
            self._begin(tenancies[row % len(tenancies)])
        self.publisher.put([StepOutput(info, has_started=True) for info in self._rows])

    def _begin(self, tenancy: Tenancy) -> None:
        job_id, ledger = str(uuid4()), tenancy.ledger
        job = GenerationJob(prompt="a tale", model=MODEL, tenant=ledger.tenant)
        queue = queue_name(MODEL, ledger.tenant)
        run_call(self._redis, ledger.submit(job_id, job, Envelope.for_job(job_id, queue)))
        claimed = run_call(self._redis, ledger.claim(job_id, self._owner, queue=queue))
        if not isinstance(claimed, Yours):
            raise RuntimeError(f"{job_id} is {claimed}")
        info = SequenceInfo(job_id, ledger.tenant, num_prompt_tokens=4)
        stream = EventLog(job_id, claimed, RecordedOutputs.from_events(()), tenancy.author)
        stream.pace.gather_s = self._plan.flush_ms / 1000
        self.publisher.open(Attempt(stream, [], [info]))
        self._rows.append(info)

    def step(self) -> None:
        token, text = (SampledToken(100),), f"{monotonic():.4f} "
        self.publisher.put([StepOutput(info, token, text) for info in self._rows])


def simulate(plan: Plan) -> None:
    """Run all workers of this process until the input ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    workers = [SimulatedWorker(plan, plan.first + number) for number in range(plan.num)]
    for worker in workers:
        worker.begin()
        worker.start()
        sleep(BETWEEN_S)
    with Redis.from_url(plan.url) as redis:
        redis.ping()
    print("up", flush=True)
    next_s = monotonic()
    while True:
        for worker in workers if plan.rows else ():
            worker.step()
        next_s = max(next_s + 1 / plan.tokens_per_s, monotonic() - 1)
        sleep(max(0.0, next_s - monotonic()))


def _end_with_input() -> None:
    """Who started this has gone, or wants no more of it: end at once, whatever the threads do."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    Thread(target=_end_with_input, daemon=True).start()
    simulate(Plan(**json.loads(sys.argv[1])))
