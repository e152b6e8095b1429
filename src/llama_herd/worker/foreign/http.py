"""The least of HTTP/1.1 that a server of tokens needs: a request on a connection of its own, and its answer.

The answer's content is handed on as it comes, in the callback that the socket wakes: a token costs no task's
turn. Each request has its own connection, so closing it ends the request and nothing else, and a connection
that breaks says that the server has lost this request and no other.
"""

import asyncio
import socket
import ssl
from asyncio import BaseTransport
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic_core import from_json, to_json

#: Longest head of an answer, and most of its content that is kept: of an error, or of an answer as a whole.
MAX_HEAD_BYTES, MAX_KEPT_BYTES = 1 << 16, 64 << 20
#: How long a connection may take to come.
CONNECT_S = 5.0

#: Seconds until the system asks whether the other end is there, then between two questions, and how many.
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

#: Takes a part of an answer's content.
Take = Callable[[bytes], None]


class ServerAway(Exception):
    """Nobody answers at the server's address, so the request has not begun."""


class ConnectionLost(Exception):
    """The connection ended before the answer did: what the server had begun is lost."""


class NotHttp(Exception):
    """What came is no answer of HTTP/1.1, or too much."""


class Answer(NamedTuple):
    """A whole answer; of one whose content was handed on, the status."""

    status: int
    content: bytes = b""

    @property
    def json(self) -> Any:
        """The content as JSON; None if it is none."""
        try:
            return from_json(self.content)
        except ValueError:
            return None


@dataclass(frozen=True)
class HttpServer:
    """A server at an address. Its methods run on an asyncio loop.

    server = HttpServer.at("http://127.0.0.1:8000")
    answer = await server.get("/health", timeout_s=5)
    await server.post("/v1/completions", {"prompt": [1]}, take=print)
    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    path: str
    headers: bytes = field(repr=False)  # with the key

    @classmethod
    def at(cls, url: str, key: str = "") -> Self:
        """The server at an address; `key` goes with each request."""
        parts = urlsplit(url)
        is_safe = parts.scheme == "https"
        own = [f"host: {parts.netloc}", "connection: close", "content-type: application/json"]
        if key:
            own.append(f"authorization: Bearer {key}")
        headers = "".join(f"{line}\r\n" for line in own)
        tls = ssl.create_default_context() if is_safe else None
        port = parts.port or (443 if is_safe else 80)
        return cls(parts.hostname or "", port, tls, parts.path, headers.encode("latin-1"))

    async def get(self, path: str, timeout_s: float) -> Answer:
        """Ask for something. Raises ServerAway also when the answer takes longer, or is none."""
        return await self._within(timeout_s, self._exchange(b"GET", path, b""))

    async def ask(self, path: str, content: Mapping[str, Any], timeout_s: float) -> Answer:
        """Send something, and take the whole answer within a time, as `get` does."""
        return await self._within(timeout_s, self._exchange(b"POST", path, to_json(content)))

    async def post(self, path: str, content: Mapping[str, Any], take: Take | None = None) -> Answer:
        """Send something; what comes with the status 200 goes to `take`. Cancelled, it closes the connection.

        Raises ServerAway before the request is sent, and ConnectionLost after it.
        """
        return await self._exchange(b"POST", path, to_json(content), take)

    async def _within(self, timeout_s: float, exchange: Awaitable[Answer]) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):  # wait_for may lose a cancel before Python 3.12
                return await exchange
        except (TimeoutError, ConnectionLost, NotHttp) as error:
            raise ServerAway(str(error) or f"no answer within {timeout_s:g} s") from None

    async def _exchange(self, method: bytes, path: str, content: bytes, take: Take | None = None) -> Answer:
        loop = asyncio.get_running_loop()
        target = (self.path + path).encode("latin-1")
        length = b"content-length: %d\r\n" % len(content) if content else b""
        exchange = Exchange(loop.create_future(), take)
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await loop.create_connection(
                    lambda: exchange, self.host, self.port, ssl=self.tls
                )
        except (OSError, TimeoutError) as error:
            raise ServerAway(str(error) or "no connection") from None
        try:
            transport.write(b"%b %b HTTP/1.1\r\n%b%b\r\n%b" % (method, target, self.headers, length, content))
            return await exchange.done
        finally:
            transport.abort()


class Exchange(asyncio.Protocol):
    """Reads the answer to one request. `done` is the answer, or why there is none."""

    def __init__(self, done: asyncio.Future[Answer], take: Take | None) -> None:
        self.done = done
        self._take = take
        self._status = 0  # not known yet
        self._is_chunked = False
        self._num_left = -1  # bytes of content that are still to come; -1: as many as come
        self._buffer = b""
        self._kept: list[bytes] = []
        self._num_kept = 0

    def connection_made(self, transport: BaseTransport) -> None:
        """Have the system ask whether the other end is there: one whose machine has gone never says so."""
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        self._buffer += data
        try:
            while not self._status and self._read_head():
                pass  # what tells of a later answer comes before it
            if self._status:
                self._read_content()
        except Exception as error:  # also one of whoever takes the content
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        is_whole = self._status and not self._is_chunked and self._num_left < 0
        if not self.done.done() and is_whole and error is None:
            self._finish()
        self._fail(ConnectionLost(str(error) if error else "the connection was closed"))

    def _read_head(self) -> bool:
        """Read status and headers, if they are here whole; a status of 1xx is no answer yet."""
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD_BYTES:
            raise NotHttp("the head of the answer is too long")
        if not end:
            return False
        first, *lines = head.split(b"\r\n")
        version, _, told = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not told[:3].isdigit():
            raise NotHttp("the answer is not HTTP/1.1")
        self._buffer = rest
        if told.startswith(b"1"):
            return True
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (one.partition(b":") for one in lines)
        }
        self._is_chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        if not self._is_chunked and (length := headers.get(b"content-length")) is not None:
            self._num_left = _size(length, 10)
        self._status = int(told[:3])
        return True

    def _read_content(self) -> None:
        if self._is_chunked:
            self._read_chunks()
            return
        content, self._buffer = self._buffer, b""
        if content:
            self._hand_on(content)
        if self._num_left >= 0:
            self._num_left -= len(content)
            if self._num_left <= 0:
                self._finish()

    def _read_chunks(self) -> None:
        """Hand on the chunks that are here whole, together."""
        buffer, at, size, contents = self._buffer, 0, -1, list[bytes]()
        while size and (end := buffer.find(b"\r\n", at)) >= 0:
            size = _size(buffer[at:end].partition(b";")[0].strip(), 16)
            begin, behind = end + 2, end + 2 + size + 2
            if size and len(buffer) < behind:
                break
            contents.append(buffer[begin : begin + size])
            at = behind
        self._buffer = buffer[at:]
        if len(self._buffer) > MAX_KEPT_BYTES:
            raise NotHttp("a chunk of the answer is too long")
        if content := b"".join(contents):
            self._hand_on(content)
        if not size:
            self._finish()

    def _hand_on(self, content: bytes) -> None:
        if self._take is not None and self._status == 200:
            self._take(content)
            return
        self._kept.append(content)
        self._num_kept += len(content)
        if self._num_kept > MAX_KEPT_BYTES:
            raise NotHttp("the answer is too long")

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(Answer(self._status, b"".join(self._kept)))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # has been seen: who asked may have gone while the connection came


def _size(digits: bytes, base: int) -> int:
    """A number of bytes. Raises NotHttp, also for what int() takes beside digits."""
    try:
        size = int(digits, base) if digits.isalnum() else -1
    except ValueError:
        size = -1
    if size < 0 or digits[:2].lower() == b"0x":
        raise NotHttp("the answer does not say how long it is")
    return size
