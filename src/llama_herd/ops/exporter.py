"""The port at which Prometheus reads the metrics of a worker or a gateway, and others a worker's health."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET
from socketserver import ThreadingMixIn
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from llama_herd.errors import SettingsError
from llama_herd.ops.ledger_collector import LedgerCollector, LedgerReader
from llama_herd.ops.settings import ServedSettings
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.protocol.health import Health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

#: Shorter than Prometheus's own patience, which is 10 s.
REDIS_TIMEOUT_S = 2.0

#: What a process says of its health, by the path at which it is asked.
HealthPages = Mapping[str, Callable[[], Health]]


class Exporter:
    """Serves /metrics from the start of the process on; figures of jobs follow when the model is loaded.

    A worker's health is told beside it, in the words of the gateway.
    """

    def __init__(self, settings: ServedSettings, health: HealthPages) -> None:
        """Take the port. Raises SettingsError if that cannot be."""
        self._registry = CollectorRegistry()
        self._shown: Collector | None = None
        ProcessCollector(registry=self._registry)
        redis = connect(settings.redis_url, tries=0, timeout_s=REDIS_TIMEOUT_S)
        self._reader = LedgerReader(redis, settings)
        self._registry.register(LedgerCollector(self._reader, settings))
        host, port = settings.metrics_host, settings.metrics_port
        try:
            self._server = _Server(host, port)
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"HERD_METRICS_PORT={port}: {host} cannot be listened at ({error}). Fix: another port, or "
                "another HERD_METRICS_HOST"
            ) from None
        self._server.set_app(_with_health(health, make_wsgi_app(self._registry)))

    @classmethod
    def start(cls, settings: ServedSettings, health: HealthPages = MappingProxyType({})) -> Self | None:
        """Serve, unless the port is 0. Raises SettingsError.

        health: what is told by path; it must not block.
        """
        if not settings.metrics_port:
            return None
        exporter = cls(settings, health)
        serve = partial(exporter._server.serve_forever, poll_interval=0.2)
        threading.Thread(target=serve, name="metrics", daemon=True).start()
        return exporter

    def show(self, figures: Collector) -> None:
        """Show the process's own figures too, in the place of those that were shown before."""
        if self._shown is not None:
            self._registry.unregister(self._shown)
        self._registry.register(figures)
        self._shown = figures

    def stop(self) -> None:
        """Leave the port. A worker does without: it serves to its end, also while it drains."""
        self._server.shutdown()
        self._server.server_close()
        self._reader.close()


def _with_health(health: HealthPages, metrics: "WSGIApplication") -> "WSGIApplication":
    """The application that answers these pages, and /metrics as `metrics` does."""

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in ("/", "/metrics"):
            return metrics(environ, start)
        ask = health.get(path)
        status, body = (HTTPStatus.NOT_FOUND, "{}") if ask is None else _told(ask())
        start(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
        return [body.encode()]

    return answer


def _told(found: Health) -> tuple[HTTPStatus, str]:
    return HTTPStatus(found.http_status), found.model_dump_json(exclude_none=True)


class _MetricsHandler(WSGIRequestHandler):
    timeout = 5.0  # a client that sends no request for so long is cut off

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""


class _Server(ThreadingMixIn, WSGIServer):
    """One thread a scrape, which never outlives the process."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _MetricsHandler)

    def server_bind(self) -> None:
        """Bind without the name server, which `WSGIServer` asks for the name of the host.

        The port of a worker that has ended is free at once, though the system remembers connections to it.
        """
        self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that hung up is no fault of ours; any other error is logged as all are."""
        log.debug("scrape failed", exc_info=True)
