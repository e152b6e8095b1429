"""uvicorn's HTTP/1.1 with time limits for sending and reading, a limit of connections, and errors as JSON.

uvicorn limits the bytes of an unfinished head, but not its time: half a request would hold a connection for
ever, and so would a client that does not read its answer. uvicorn parses all bytes that have come in one go,
which delays all other connections. It closes a connection while the client still sends, or once the client
sends no more, and then the client loses the answer.
"""

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from llama_herd.tasks.gateway.problem import Problem

#: A client that sends no more may have gone away altogether: it counts as gone once it was sent nothing for
#: so long.
ONE_WAY_S = 0.5
#: Bytes of a connection that are parsed before others have their turn. In chunks of one byte: some 15 ms.
TURN_BYTES = 8192
#: Most bytes of a body that are still taken, and dropped, after its answer.
MAX_DROPPED_BYTES = 1 << 26

_TWO_LENGTHS = {b"content-length", b"transfer-encoding"}
#: By h11's hint of a status. What a client must mend is not answered with 501, at which clients try again.
_REFUSALS = {
    431: (431, "the head of the request is too long"),
    501: (400, "only chunked is supported as Transfer-Encoding"),
}


class GuardedProtocol(H11Protocol):
    """Cuts off a client that takes longer than `idle_s` to send a head, or reads nothing for so long.

    Connections beyond `max_connections` are closed at once.
    """

    idle_s: float
    max_connections: int
    _idle: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _turn: asyncio.Handle | None = None
    #: Whether the client sends no more; and what runs then, from each time that it was sent something.
    _is_one_way = False
    _one_way: asyncio.TimerHandle | None = None
    #: Whether nothing has come since the last answer was over.
    _is_resting = False
    #: Bytes that have come and wait for their turn.
    _waiting = b""
    #: Whether its last answer is over, and how many bytes may still come and be dropped.
    _is_closing_soon = False
    _num_to_drop = MAX_DROPPED_BYTES

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._restart_idle_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._idle)
        _cancel(self._stall)
        _cancel(self._turn)
        _cancel(self._one_way)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_resting:
            self._is_resting = False
            self._restart_idle_timer()
        self._waiting += data
        if self._turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Read some of what has come, and let other connections have their turn before the rest."""
        self._turn = None
        part, self._waiting = self._waiting[:TURN_BYTES], self._waiting[TURN_BYTES:]
        if self._is_closing_soon:  # until the client closes: it has as long as for a head
            self._num_to_drop -= len(part)
            if self._num_to_drop <= 0:
                self._waiting = b""
                self.transport.close()
        else:
            super().data_received(part)
        if self._waiting and not self.transport.is_closing():
            self.transport.pause_reading()
            self._turn = self.loop.call_soon(self._take_turn)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Go on with the answers to a client that sends no more. Returns whether there is one."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not self.transport.can_write_eof():
            return False
        if self.conn.their_state is h11.SEND_BODY:
            self._refuse(400, "the connection ended before the body did")
            return False
        self._is_one_way = True  # it may have sent further requests
        self._restart_one_way_timer()
        return True

    def handle_events(self) -> None:
        before: Any = self.cycle
        super().handle_events()
        if self.cycle is not before:
            _cancel(self._idle)
            self._is_resting = False
            if self._is_one_way:
                self._restart_one_way_timer()
            # A connection that is closed while the client sends gives it an error instead of the answer.
            self.cycle.transport = SimpleNamespace(  # type: ignore[assignment]
                write=self._write, is_closing=self.transport.is_closing, close=self._close_after_request
            )
            # With both lengths a proxy may see another end: what follows could be another client's.
            if {name for name, _ in self.headers} >= _TWO_LENGTHS:
                self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        _cancel(self._one_way)
        if not self._is_closing_soon:
            _cancel(self._idle)
            self._is_resting = True
        super().on_response_complete()
        if self._is_one_way and self.cycle.response_complete:  # all that it has asked is answered
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self.idle_s, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stall)
        super().resume_writing()

    def _write(self, data: bytes) -> None:
        """Send a part of an answer. To a client that is gone altogether the next but one fails."""
        self.transport.write(data)
        if self._one_way is not None:
            self._restart_one_way_timer()

    def _restart_one_way_timer(self) -> None:
        _cancel(self._one_way)
        self._one_way = self.loop.call_later(ONE_WAY_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read as HTTP with an error in the shape of all others."""
        hint = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(*_REFUSALS.get(hint, (400, "this is not HTTP/1.1")))

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, unless an answer has begun, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = json.dumps(Problem(status, "bad_request", message).body).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        head = h11.Response(status_code=status, headers=[*headers, ("connection", "close")])
        cycle = self.cycle
        is_under_way = cycle is not None and not cycle.response_complete
        is_head = is_under_way and cycle.scope["method"] == "HEAD"
        for event in (head, h11.Data(data=b"" if is_head else body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if is_under_way:  # what reads the body has no answer to give any more
            cycle.disconnected = True
            cycle.message_event.set()
        self._close_after_request()

    def shutdown(self) -> None:
        """End in order, unless what was sent last was no HTTP: that must not hold up the others."""
        if self.conn.our_state is h11.ERROR:
            self.transport.abort()
        else:
            super().shutdown()

    def _close_after_request(self) -> None:
        """Close once the client has sent the request that it is sending."""
        if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            self.transport.close()
            return
        self._is_closing_soon = True
        self.flow.resume_reading()
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:  # the client is gone altogether
            self.transport.abort()
        self._restart_idle_timer()

    def _restart_idle_timer(self) -> None:
        """Give the client `idle_s` from now to send its next head, or what is still to be dropped."""
        _cancel(self._idle)
        self._idle = self.loop.call_later(self.idle_s, self.transport.abort)


def _cancel(timer: asyncio.Handle | None) -> None:
    if timer is not None:
        timer.cancel()
