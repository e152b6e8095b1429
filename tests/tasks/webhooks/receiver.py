"""Receivers of webhooks: a real HTTP server in a thread, and one that takes connections and says nothing."""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from standardwebhooks import Webhook

from tests.chaos.harness.patience import wait_until


@dataclass(frozen=True)
class Request:
    """What has come."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> Any:
        """The body, if the signature is right."""
        return Webhook(secret).verify(self.body, dict(self.headers))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # else the system drops connections, and tries them again a second later


class Receiver:
    """Answers 204, or what `status` says of the request and the number of those before it."""

    def __init__(self, status: Callable[[Request, int], int] = lambda request, number: 204) -> None:
        self.requests: list[Request] = []
        self.location = ""
        self._status = status
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=1"

    def wait_for(self, num: int) -> list[Request]:
        wait_until(lambda: len(self.requests) >= num, f"{num} webhooks have come")
        return self.requests

    @property
    def ids(self) -> list[str]:
        """The jobs that it was told of."""
        return [json.loads(request.body)["data"]["id"] for request in self.requests]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, self.rfile.read(length))
                receiver.requests.append(request)
                self.send_response(receiver._status(request, len(receiver.requests)))
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler


class Silence:
    """A host that takes connections, and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
