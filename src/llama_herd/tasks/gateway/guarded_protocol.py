"""uvicorn's HTTP/1.1 with limits of time for what comes and what goes, of connections, and errors as JSON.

uvicorn limits the bytes of a head, but not its time: half a request would hold a connection for ever, and so
would who reads nothing.
"""

import asyncio
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from llama_herd.tasks.gateway.errors import Problem

IDLE_S = 30.0
#: Open files that are no client's: Redis, the page, logs.
OWN_FILES = 128
#: Most open files that are asked for. A system may allow more than it can count.
MOST_FILES = 1 << 20

_TWO_LENGTHS = {b"content-length", b"transfer-encoding"}
_WORDS = {431: "the head of the request is too long", 501: "only chunked is supported as Transfer-Encoding"}


def room_for_connections() -> int:
    """How many clients the system lets us have, once it lets us have as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # macOS allows less than it says
            wanted = soft
    return max(wanted - OWN_FILES, OWN_FILES)


class GuardedProtocol(H11Protocol):
    """Cuts off who sends no whole head, or reads nothing of what waits, for `idle_s`.

    Connections beyond `max_connections` are closed at once.
    """

    idle_s = IDLE_S
    max_connections = MOST_FILES
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._head)
        _stop(self._stall)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before: Any = self.cycle
        super().handle_events()
        if self.cycle is not before:
            _stop(self._head)
            # A proxy may have counted the other way: what follows could be another client's.
            if {name for name, _ in self.headers} >= _TWO_LENGTHS:
                self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self._in_time(self.transport.abort)

    def resume_writing(self) -> None:
        _stop(self._stall)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as HTTP gets an error in the shape of all others."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        status = getattr(sys.exception(), "error_status_hint", 400)
        problem = Problem(status, "bad_request", _WORDS.get(status, "this is not HTTP/1.1"))
        body = json.dumps(problem.body).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        head = h11.Response(status_code=status, headers=[*headers, ("connection", "close")])
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_head(self) -> None:
        _stop(self._head)
        self._head = self._in_time(self.transport.abort)

    def _in_time(self, do: Callable[[], Any]) -> asyncio.TimerHandle:
        return self.loop.call_later(self.idle_s, do)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
