"""A relay in front of a gateway, by which a stream is silent between any two events."""

import json
import threading
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

from llama_herd.tasks.gateway.sse import HEARTBEAT

#: What a silence of some time looks like.
SILENCE = HEARTBEAT * 3


class _Server(ThreadingHTTPServer):
    request_queue_size = 64


class Relay:
    """Passes requests on; into a stream it puts comments, as the gateway writes them, around each event."""

    def __init__(self, url: str) -> None:
        self._server = _Server(("127.0.0.1", 0), _handler(url))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(url: str) -> type[BaseHTTPRequestHandler]:
    place = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            connection = HTTPConnection(place.hostname or "", place.port, timeout=60)
            kept = {name: value for name, value in self.headers.items() if name.lower() == "authorization"}
            connection.request("POST", self.path, body, kept)
            with connection.getresponse() as answer, suppress(ConnectionError):  # the client has read enough
                self.send_response(answer.status)
                self.send_header("content-type", answer.headers["content-type"])
                self.end_headers()
                if not json.loads(body).get("stream"):
                    self.wfile.write(answer.read())
                    return
                self.wfile.write(SILENCE)
                while line := answer.readline():
                    self.wfile.write(line + (SILENCE if line == b"\n" else b""))

        def log_message(self, *_: object) -> None:
            pass

    return Handler
