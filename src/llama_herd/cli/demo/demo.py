"""The demo: a Redis, a worker and a client of its own, and eight jobs together, then one at a time."""

import asyncio
import signal
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from llama_herd.cli.demo.demo_job import PROMPTS, SAMPLING, DemoJob, new_jobs
from llama_herd.cli.demo.report import DemoReport, Phase, Round, RoundFigures
from llama_herd.cli.demo.screen import DemoScreen
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess, starting_worker
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import ACCESS
from llama_herd.worker.settings import WorkerSettings

T = TypeVar("T")

#: How often to check whether the worker is up, and whether it still runs.
POLL_S = 0.05

#: No other model will come: a job for one need not wait for long.
UNSERVED_S = 60

#: A job that takes longer has failed.
JOB_TIMEOUT_S = 600.0


class Demo:
    """Runs once. Nothing that it starts outlives `run`, however `run` ends."""

    def __init__(self, settings: WorkerSettings, screen: DemoScreen) -> None:
        """Make the demo; `settings` say which model runs where; their Redis is not used."""
        self._settings = settings
        self._screen = screen
        self._phases: list[Phase] = []

    def run(self) -> DemoReport:
        """Run the demo. Ctrl-C, SIGTERM and SIGHUP end it with KeyboardInterrupt.

        Raises ModelFileError, RedisUnavailable when there is no redis-server, WorkerDied, TimeoutError.
        """
        try:
            return asyncio.run(self._run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def _run(self) -> DemoReport:
        _cancel_on_signals()
        with ExitStack() as stack:
            with self._phase("redis") as phase:
                server = stack.enter_context(EmbeddedRedis())
                phase.detail = f"{server.version}, embedded"
            settings = demo_settings(self._settings, server.url)
            worker = stack.enter_context(starting_worker(settings, "demo"))
            with self._phase("model") as phase:
                # This imports torch, as the starting worker does too; in a thread, so that signals are heard.
                summary = await asyncio.to_thread(_describe, settings.model)
                phase.detail = f"{settings.served_model}: {summary}"
            return await self._measure(settings, worker)

    async def _measure(self, settings: WorkerSettings, worker: WorkerProcess) -> DemoReport:
        """Run the jobs together, then one by one, on a worker that is warmed up."""
        async with AsyncClient(settings=settings, model=settings.served_model) as client:
            with self._phase("worker") as phase:
                status = await _while_alive(worker, _warm_worker(client))
                phase.detail = f"{status.device}, {status.slots} slots, first job done"
            jobs = new_jobs()
            with self._screen.together(jobs):
                together = await _while_alive(worker, _run_together(client, jobs))
            jobs = new_jobs()
            with self._screen.one_by_one(jobs):
                one_by_one = await _while_alive(worker, _run_one_by_one(client, jobs))
        return DemoReport(self._phases, together, one_by_one)

    @contextmanager
    def _phase(self, name: str) -> Iterator[Phase]:
        phase, started_s = Phase(name), monotonic()
        with self._screen.busy(name):
            yield phase
        phase.seconds = monotonic() - started_s
        self._phases.append(phase)
        self._screen.show(phase)


def demo_settings(settings: WorkerSettings, redis_url: str) -> WorkerSettings:
    """The settings of the demo's worker: the same model in the same way, at a Redis of the demo's own."""
    own = {"redis_url": redis_url, "model": settings.model.resolve(), "log_format": "console"}
    own |= {"unserved_timeout_s": UNSERVED_S}
    return settings.model_copy(update=own | dict.fromkeys(("tenants", *ACCESS), ""))


def _cancel_on_signals() -> None:
    """End this task when the process must end.

    An exception from a signal handler could arise anywhere, and an import, for example, can swallow it.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _describe(path: Path) -> str:
    """A model in a few words: bytes of its tensors, their main type, and their number."""
    # This imports torch: not before the demo's first line is shown.
    from llama_herd.model.files.open_model import open_model

    with open_model(path) as model:
        bytes_of = Counter[str]()
        for info in model.tensors:
            bytes_of[info.type.name] += info.num_bytes
        main_type = max(bytes_of, key=bytes_of.__getitem__)
        return f"{model.num_bytes / 1e6:.1f} MB, {main_type}, {len(model.tensors)} tensors"


async def _while_alive(worker: WorkerProcess, work: Coroutine[Any, Any, T]) -> T:
    """Do some work while the worker lives. Raises WorkerDied."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=POLL_S))[0]:
            worker.check()
        return task.result()
    finally:
        task.cancel()


async def _warm_worker(client: AsyncClient) -> WorkerStatus:
    """The worker, once it is ready and warmed up by a short job: the figures exclude torch's start."""
    while not (ready := [worker for worker in await client.workers() if worker.state == "ready"]):
        await asyncio.sleep(POLL_S)
    job_id = await client.submit(prompt=PROMPTS[0], sampling={"max_tokens": 4})
    await client.result(job_id, timeout_s=JOB_TIMEOUT_S)
    return ready[0]


async def _run_together(client: AsyncClient, jobs: Sequence[DemoJob]) -> Round:
    started_s = monotonic()
    await asyncio.gather(*(_follow(client, job) for job in jobs))
    return Round(jobs, RoundFigures.from_jobs(jobs, monotonic() - started_s))


async def _run_one_by_one(client: AsyncClient, jobs: Sequence[DemoJob]) -> Round:
    started_s = monotonic()
    for job in jobs:
        await _follow(client, job)
    return Round(jobs, RoundFigures.from_jobs(jobs, monotonic() - started_s))


async def _follow(client: AsyncClient, job: DemoJob) -> None:
    job.submitted_s = monotonic()
    job.job_id = await client.submit(prompt=job.prompt, sampling=SAMPLING | {"seed": job.seed})
    async for event in client.stream(job.job_id, timeout_s=JOB_TIMEOUT_S):
        job.note(event, monotonic())
