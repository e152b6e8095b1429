"""The demo that stays: a Redis, two workers, and a gateway with its page."""

import asyncio
import signal

from llama_herd.cli.demo.demo import demo_settings
from llama_herd.cli.terminal import show
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess, starting_worker
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.gateway.app import make_gateway_app
from llama_herd.tasks.gateway.serve import Server
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.settings import ACCESS
from llama_herd.worker.loading.machine import num_cores
from llama_herd.worker.settings import WorkerSettings

#: Two, so that one can be killed while the other goes on.
NAMES = ("one", "two")

#: How long answers may go on after Ctrl-C.
GRACE_S = 2.0

#: How often to check whether a worker is up, and whether it still runs.
POLL_S = 0.1


class WebDemo:
    """Runs once. Nothing that it starts outlives `run`, however `run` ends."""

    def __init__(self, settings: WorkerSettings) -> None:
        """`settings` say which model runs where; their Redis is not used."""
        self._settings = settings

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM or SIGHUP.

        Raises RedisUnavailable when there is no redis-server, WorkerDied when a worker cannot start.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        """Serve the page, and keep the workers alive, until a signal ends the server."""
        with EmbeddedRedis() as redis:
            settings = _sharing_settings(self._settings, redis.url)
            server = _gateway(settings)
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, server.handle_exit, signal.SIGHUP, None
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
    """The settings of each worker: of cores and memory it takes its part."""
    share = settings.memory_share / len(NAMES)
    cores = num_cores()
    own = {"memory_share": share, "threads": settings.threads or max(1, cores // len(NAMES))}
    return demo_settings(settings, redis_url).model_copy(update=own)


def _gateway(settings: WorkerSettings) -> Server:
    """A gateway at a free port, for this machine only, and open to all of it."""
    same = {name: getattr(settings, name) for name in ("redis_url", "tenant", *ACCESS)}
    own = {"gateway_host": "127.0.0.1", "gateway_port": 0, "gateway_cert_file": "", "gateway_key_file": ""}
    own |= {"gateway_open": True, "gateway_request_log": "errors"}
    read = GatewaySettings.read(model_name=settings.served_model, gateway_grace_s=GRACE_S, **same, **own)
    return Server(make_gateway_app(read), read, lambda url: _say(f"open {url}    Ctrl-C ends all of it"))


async def _keep_worker_alive(settings: WorkerSettings, name: str) -> None:
    """A worker, and another one when it dies. Raises WorkerDied if it does so before it is ready."""
    while True:
        with starting_worker(settings, name) as worker:
            await _until_ready(settings, worker)
            _say(f"worker {worker.name} is ready    kill -9 {worker.process.pid} and see its jobs go on")
            while worker.is_alive:
                await asyncio.sleep(POLL_S)
        _say(f"worker {worker.name} is dead    another one is on its way")


async def _until_ready(settings: WorkerSettings, worker: WorkerProcess) -> None:
    async with AsyncClient(settings=settings.for_first_tenant) as client:
        while not any(one.name == worker.name and one.state == "ready" for one in await client.workers()):
            worker.check()
            await asyncio.sleep(POLL_S)


def _say(line: str) -> None:
    show(line)
