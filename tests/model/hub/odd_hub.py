"""A hub that answers as it is told, byte by byte: no HTTP server would."""

import json
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from tests.hub_server import digest

REPO, NAME = "owner/odd", "odd-Q8_0.gguf"
CONTENT = bytes(range(256)) * 64
COMMIT = "c0ffee" * 6 + "abcd"


@dataclass(frozen=True)
class Answer:
    """Bytes that are sent once, and those that are sent over and over until the client leaves."""

    once: bytes
    endless: bytes = b""


def head(status: str = "200 OK", **headers: object) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join((*lines, "Connection: close", "", "")).encode()


def sibling(name: object = NAME, num_bytes: object = len(CONTENT), **lfs: object) -> dict[str, Any]:
    own = {"sha256": digest(NAME, CONTENT), "size": num_bytes}
    return {"rfilename": name, "size": num_bytes, "lfs": {**own, **lfs}}


def listed(*siblings: object, **fields: object) -> Answer:
    """A list of files as the hub gives it."""
    return json_answer({"id": REPO, "sha": COMMIT, "siblings": list(siblings), **fields})


def json_answer(value: object) -> Answer:
    body = json.dumps(value).encode()
    return Answer(head(Content_Length=len(body)) + body)


def whole_file(begin: int) -> Answer:
    """The file as the hub sends it."""
    left = CONTENT[begin:]
    if not begin:
        return Answer(head(Content_Length=len(left)) + left)
    span = f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}"
    return Answer(head("206 Partial Content", Content_Length=len(left), Content_Range=span) + left)


@dataclass
class OddHub:
    """file: its answer to who wants the file from a byte on."""

    list: Answer = field(default_factory=lambda: listed(sibling()))
    file: Callable[[int], Answer] = whole_file
    num_asked: int = 0

    def __enter__(self) -> Self:
        hub = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    hub._answer(self.rfile, self.wfile)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _answer(self, rfile: Any, wfile: Any) -> None:
        path, begin = rfile.readline().decode().split()[1], 0
        while line := rfile.readline().strip():
            if line.lower().startswith(b"range: bytes="):
                begin = int(line[13:].partition(b"-")[0])
        self.num_asked += 1  # of whatever kind
        if path.startswith("/api/") and not path.startswith("/api/models/"):
            wfile.write(head("404 Not Found", Content_Length=0))
            return
        found = self.list if path.startswith("/api/") else self.file(begin)
        wfile.write(found.once.replace(b"<here>", self.url.encode()))
        while found.endless:
            wfile.write(found.endless * (65_536 // len(found.endless)))
