"""A gateway in a thread of the test, on a port of its own, and the plain HTTP that tests speak with it."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from llama_herd.tasks.feeder.batch_execution import BatchCount
from llama_herd.tasks.gateway.app import make_gateway_app
from llama_herd.tasks.gateway.context import GatewayContext
from llama_herd.tasks.gateway.request_log import AnswerCount
from llama_herd.tasks.gateway.serve import Server
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.batch_records import BatchRecords
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.reply import Reply
from tests.tasks.gateway.described import hold_to_description


class ServerEvent(NamedTuple):
    """One event of a stream."""

    name: str
    id: str | None
    data: str

    @property
    def number(self) -> int | None:
        return int(self.id.partition("-")[0]) if self.id else None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class GatewayThread:
    """A gateway as `herd gateway --open` runs it, without a log.

    middleware: what is put around the app. settings: the gateway's, without a prefix.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        tenant: str = "default",
        model_name: str = "",
        models: str = "",
        answers: AnswerCount | None = None,
        batch_count: BatchCount | None = None,
        middleware: Callable[[ASGIApp], ASGIApp] | None = None,
        **settings: object,
    ) -> None:
        fields = {f"gateway_{name}": value for name, value in settings.items()}
        self._files = TemporaryDirectory()
        own = {
            "gateway_files": self._files.name,
            "gateway_port": 0,
            "gateway_grace_s": 0.0,
            "gateway_open": True,
            "gateway_request_log": "off",
        }
        fields = {**own, **fields, "tenant": tenant, "model_name": model_name, "models": models}
        read = GatewaySettings.read(redis_url=redis_url, **fields)
        self._app = make_gateway_app(read, answers, batch_count)
        if middleware is not None:
            self._app.add_middleware(middleware)
        self._server = Server(self._app, read, lambda url: None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._has_started = threading.Event()
        #: Held while it looks for batches.
        self._looking = threading.Lock()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._has_started.wait(PATIENCE_S)
        feeder = self.context.feeder
        feeder._look = partial(self._look_alone, feeder._look)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._files.cleanup()

    def rest(self) -> None:
        """End a test's answers and batches: they would put jobs into the Redis of the next test."""
        wait_until(lambda: not self.context.concurrency.num_taken, "the answers have ended")
        feeder = self.context.feeder
        with self._looking:  # none is taken meanwhile
            for batch in feeder._leave_all():
                batch.thread.join(PATIENCE_S)
                assert not batch.thread.is_alive()
            feeder._redis.delete(BatchRecords(storage=feeder.storage.id).due_key)  # nor again

    def _look_alone(self, look: Callable[[], None]) -> None:
        with self._looking:
            look()

    @property
    def context(self) -> GatewayContext:
        context: GatewayContext = self._app.state.context
        return context

    @property
    def num_connections(self) -> int:
        return len(self._server.server_state.connections)

    @property
    def num_requests(self) -> int:
        """How many are being answered."""
        return len(self._server.server_state.tasks)

    def limit_connections(self, num: int) -> None:
        self._server.protocol.max_connections = num

    def forget(self) -> None:
        """Forget which workers there were a moment ago."""
        self.context._clients.clear()

    @property
    def url(self) -> str:
        return self._server.url

    def connect(self) -> HTTPConnection:
        place = urlsplit(self.url)
        return HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}
    ) -> HTTPResponse:
        """Send a request and return its answer as soon as that begins."""
        raw = body if isinstance(body, bytes | Iterator | None) else json.dumps(body).encode()
        connection = self.connect()
        connection.request(method, path, raw, dict(headers))
        return connection.getresponse()

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}) -> Reply:
        """Send a request and read its whole answer, which is as the gateway's description says."""
        with self.send(method, path, body, headers) as answer:
            reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        hold_to_description(method, path, reply.status, reply.headers.get("content-type", ""), reply.raw)
        return reply

    def _run(self) -> None:
        async def run() -> None:
            self.loop = asyncio.get_running_loop()
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.001)
            self._has_started.set()
            await serving

        asyncio.run(run())


def events_of(answer: HTTPResponse) -> Iterator[ServerEvent]:
    """The events of a stream as they come; comments are left out."""
    fields: dict[str, str] = {}
    while line := answer.readline():
        text = line.decode().rstrip("\n")
        name, colon, value = text.partition(": ")
        if colon and name:
            fields[name] = value
        elif not text and "data" in fields:
            yield ServerEvent(fields.get("event", ""), fields.get("id"), fields["data"])
            fields = {}
        elif not text:
            fields = {}
