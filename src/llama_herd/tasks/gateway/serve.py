"""Runs the gateway in this process."""

import asyncio
import gc
import logging
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket

import uvicorn
from starlette.applications import Starlette

from llama_herd.errors import BadInput
from llama_herd.tasks.connection.connect import connect, redis_errors
from llama_herd.tasks.feeder.batch_execution import BatchCount
from llama_herd.tasks.gateway.app import make_gateway_app
from llama_herd.tasks.gateway.guarded_protocol import GuardedProtocol
from llama_herd.tasks.gateway.identity import NO_KEYS
from llama_herd.tasks.gateway.request_log import AnswerCount
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.stored_api_keys import num_keys

#: How many more objects there are before Python looks for cycles, and how often it does so before it looks at
#: older ones, too. A stream leaves some thirty objects in cycles, and with ten thousand it takes a second.
COLLECT_AT = (50_000, 20, 10)
#: Open files that the gateway itself needs: for Redis, the page, logs.
OWN_FILES = 128
#: Most open files that are asked for, even if the system would allow more.
MOST_FILES = 1 << 20


def serve_gateway(
    settings: GatewaySettings, answers: AnswerCount, batches: BatchCount, on_start: Callable[[], None]
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises BadInput and RedisUnavailable before it begins.

    The counts tell what it answers and runs. on_start: called when it listens.
    """
    with connect(settings.redis_url) as redis, redis_errors(settings.redis_url):
        has_keys = run_call(redis, num_keys()) > 0
    access = "" if has_keys else f", closed: {NO_KEYS}"
    if settings.gateway_open:
        access = f", open: everybody on this machine is operator of the tenant {settings.tenant}"
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)

    def note_start(url: str) -> None:
        print(f"herd: gateway at {url}{access}", file=sys.stderr, flush=True)
        on_start()

    Server(make_gateway_app(settings, answers, batches), settings, note_start).run()


class Server(uvicorn.Server):
    """uvicorn, told to end by a signal, and to say where it listens: it calls `on_start` with its address."""

    def __init__(self, app: Starlette, settings: GatewaySettings, on_start: Callable[[str], None]) -> None:
        limits = {"idle_s": settings.gateway_idle_s, "max_connections": _room_for_connections()}
        self.protocol: type[GuardedProtocol] = type("Protocol", (GuardedProtocol,), limits)
        config = uvicorn.Config(
            app,
            host=settings.gateway_host,
            port=settings.gateway_port,
            http=self.protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ssl_certfile=settings.gateway_cert_file or None,
            ssl_keyfile=settings.gateway_key_file or None,
            h11_max_incomplete_event_size=settings.gateway_max_header_bytes,
            timeout_keep_alive=settings.gateway_keep_alive_s,  # type: ignore[arg-type]  # any number
            timeout_graceful_shutdown=settings.gateway_grace_s,  # type: ignore[arg-type]  # any number
            backlog=4096,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_uvicorns_to_tell)
        self._app = app
        self._on_start = on_start

    async def startup(self, sockets: list[socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as error:
            reason = error.__context__  # of an address that cannot be had; else uvicorn has told of it
            if not isinstance(reason, OSError):
                raise
            place = f"{self.config.host}:{self.config.port}"
            problem = str(reason.strerror).rpartition(": ")[2]  # before it asyncio repeats the place
            raise BadInput(
                f"cannot listen at {place}: {problem}. Fix: choose another --port or --host"
            ) from None
        if self.started:
            self._on_start(self.url)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._app.state.context.is_closing.set()
        await super().shutdown(sockets)
        if self.force_exit:  # a second Ctrl-C: uvicorn would leave the app to be cancelled, with a traceback
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()

    @property
    def url(self) -> str:
        """The address at which the server listens. With port 0 the system has chosen the port."""
        scheme = "https" if self.config.is_ssl else "http"
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends it in order. uvicorn would raise it again after that, and die of it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)  # as by nohup
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def _is_uvicorns_to_tell(record: logging.LogRecord) -> bool:
    """Not of an address that cannot be had, which uvicorn logs as it is raised: our own error tells of it."""
    return not isinstance(record.msg, OSError)


def _room_for_connections() -> int:
    """Raise the limit of open files as far as allowed; return how many clients fit, at least OWN_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # macOS allows less than it says
            wanted = soft
    return max(wanted - OWN_FILES, OWN_FILES)
