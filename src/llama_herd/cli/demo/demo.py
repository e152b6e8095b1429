"""The demo: a Redis, workers and a client of its own. Eight jobs together and then alone, or a page."""

import asyncio
import signal
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from llama_herd.cli.demo.screen import PROMPTS, DemoJob, DemoReport, DemoScreen, Figures, new_jobs
from llama_herd.cli.terminal import show
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess, settings_at, starting_worker
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import ACCESS
from llama_herd.worker.loading.machine import num_cores
from llama_herd.worker.settings import WorkerSettings

T = TypeVar("T")

#: How often to check whether a worker is up, and whether it still runs.
POLL_S = 0.05
#: No other model will come: a job for one need not wait for long.
UNSERVED_S = 60
#: A job that takes longer has failed.
JOB_TIMEOUT_S = 600.0

#: Workers beside a page: two, so that one can be killed while the other goes on.
NAMES = ("one", "two")
#: How long answers may go on after Ctrl-C.
GRACE_S = 2.0

#: The same seeds each time, so that the demo tells the same tales wherever it runs.
SAMPLING: SamplingFields = {"max_tokens": 160, "temperature": 0.7, "top_p": 0.95}


def run_demo(settings: WorkerSettings, screen: DemoScreen) -> DemoReport:
    """Run the demo; `settings` say which model runs where, and their Redis is not used.

    Nothing that it starts outlives it, however it ends. Ctrl-C, SIGTERM and SIGHUP end it with
    KeyboardInterrupt. Raises ModelFileError, RedisUnavailable when there is no redis-server, WorkerDied,
    TimeoutError.
    """
    try:
        return asyncio.run(_run(settings, screen))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run(settings: WorkerSettings, screen: DemoScreen) -> DemoReport:
    # Signals end this task. An exception from a handler could arise anywhere, and an import, for example, can
    # swallow it.
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with ExitStack() as stack:
        with screen.phase("redis") as phase:
            server = stack.enter_context(EmbeddedRedis())
            phase.detail = f"{server.version}, embedded"
        settings = demo_settings(settings, server.url)
        worker = stack.enter_context(starting_worker(settings, "demo"))
        with screen.phase("model") as phase:
            # This imports torch, as the starting worker does too; in a thread, so that signals are heard.
            summary = await asyncio.to_thread(_describe, settings.model)
            phase.detail = f"{settings.served_model}: {summary}"
        return await _measure(settings, worker, screen)


async def _measure(settings: WorkerSettings, worker: WorkerProcess, screen: DemoScreen) -> DemoReport:
    """Run the jobs together, then one by one, on a worker that is warmed up."""
    async with AsyncClient(settings=settings, model=settings.served_model) as client:
        with screen.phase("worker") as phase:
            status = await _while_alive(worker, _warm_worker(client, worker))
            phase.detail = f"{status.device}, {status.slots} slots, first job done"
        jobs, again = new_jobs(), new_jobs()
        with screen.together(jobs):
            together = await _while_alive(worker, _run_round(client, jobs, are_together=True))
        with screen.one_by_one(again):
            one_by_one = await _while_alive(worker, _run_round(client, again, are_together=False))
    exit_code = int(any(job.state != "done" for job in (*jobs, *again)))
    return DemoReport(screen.phases, jobs, together, one_by_one, exit_code)


def demo_settings(settings: WorkerSettings, redis_url: str) -> WorkerSettings:
    """The settings of the demo's worker: the same model in the same way, at a Redis of the demo's own."""
    own = {"log_format": "console", "unserved_timeout_s": UNSERVED_S}
    return settings_at(settings, redis_url).model_copy(update=own)


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


async def _ready_worker(client: AsyncClient, worker: WorkerProcess) -> WorkerStatus:
    """What a worker says of itself once it is ready. Raises WorkerDied."""
    while True:
        for one in await client.workers():
            if one.name == worker.name and one.state == "ready":
                return one
        worker.check()
        await asyncio.sleep(POLL_S)


async def _warm_worker(client: AsyncClient, worker: WorkerProcess) -> WorkerStatus:
    """The worker, once it is ready and warmed up by a short job: the figures exclude torch's start."""
    status = await _ready_worker(client, worker)
    job_id = await client.submit(prompt=PROMPTS[0], sampling={"max_tokens": 4})
    await client.result(job_id, timeout_s=JOB_TIMEOUT_S)
    return status


async def _run_round(client: AsyncClient, jobs: Sequence[DemoJob], *, are_together: bool) -> Figures:
    started_s = monotonic()
    if are_together:
        await asyncio.gather(*(_follow(client, job) for job in jobs))
    else:
        for job in jobs:
            await _follow(client, job)
    return Figures.of(jobs, monotonic() - started_s)


async def _follow(client: AsyncClient, job: DemoJob) -> None:
    job.submitted_s = monotonic()
    job.job_id = await client.submit(prompt=job.prompt, sampling=SAMPLING | {"seed": job.seed})
    async for event in client.stream(job.job_id, timeout_s=JOB_TIMEOUT_S):
        job.note(event, monotonic())


async def serve_page(settings: WorkerSettings) -> None:
    """Serve the page, and keep two workers alive, until Ctrl-C, SIGTERM or SIGHUP.

    `settings` say which model runs where; their Redis is not used. Nothing outlives it, however it ends.
    Raises RedisUnavailable when there is no redis-server, WorkerDied when a worker cannot start.
    """
    from llama_herd.tasks.gateway.app import make_gateway_app
    from llama_herd.tasks.gateway.serve import Server

    with EmbeddedRedis() as redis:
        settings = _sharing_settings(settings, redis.url)
        # A gateway at a free port, for this machine only, and open to all of it.
        same = {name: getattr(settings, name) for name in ("redis_url", "tenant", *ACCESS)}
        own = {"gateway_host": "127.0.0.1", "gateway_cert_file": "", "gateway_key_file": ""}
        own |= {"gateway_request_log": "errors", "model_name": settings.served_model}
        read = GatewaySettings.read(gateway_port=0, gateway_open=True, gateway_grace_s=GRACE_S, **same, **own)
        server = Server(
            make_gateway_app(read), read, lambda url: show(f"open {url}    Ctrl-C ends all of it")
        )
        keepers = [asyncio.create_task(_keep_worker_alive(settings, name)) for name in NAMES]
        for keeper in keepers:
            keeper.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
        try:
            await server.serve()
        finally:
            for keeper in keepers:
                keeper.cancel()
            ends = await asyncio.gather(*keepers, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end


def _sharing_settings(settings: WorkerSettings, redis_url: str) -> WorkerSettings:
    """The settings of each worker beside a page: of cores and memory it takes its part."""
    share = settings.memory_share / len(NAMES)
    own = {"memory_share": share, "threads": settings.threads or max(1, num_cores() // len(NAMES))}
    return demo_settings(settings, redis_url).model_copy(update=own)


async def _keep_worker_alive(settings: WorkerSettings, name: str) -> None:
    """A worker, and another one when it dies. Raises WorkerDied if it does so before it is ready."""
    while True:
        with starting_worker(settings, name) as worker:
            async with AsyncClient(settings=settings.for_first_tenant) as client:
                await _ready_worker(client, worker)
            show(f"worker {worker.name} is ready    kill -9 {worker.process.pid} and see its jobs go on")
            while worker.is_alive:
                await asyncio.sleep(POLL_S)
        show(f"worker {worker.name} is dead    another one is on its way")
