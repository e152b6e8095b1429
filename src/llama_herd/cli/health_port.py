"""`herd health` where HERD_METRICS_PORT says at which port a worker answers: it costs a bare socket.

A container's engine runs it every few seconds beside a worker that needs the cores. So nothing of ours is
imported here, and nothing large.
"""

import os
import socket
from select import select
from time import monotonic

#: Ports that are asked: that of the settings, and the next ones, which further workers of --gpus take.
NUM_PORTS = 16
#: How long all answers may take on a busy machine; shorter than what the files of containers allow.
TIMEOUT_S = 8.0
#: How long one is waited for before the next port is asked, too.
PATIENCE_S = 0.5

#: Addresses to listen at that are none to call.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def port_in_use() -> int:
    """The port that the variable names; 0: it names none, or nothing that is a port."""
    port = os.environ.get("HERD_METRICS_PORT", "")
    return int(port) if port.isdecimal() and int(port) < 1 << 16 else 0


def complaint_at(port: int) -> str:
    """Why no worker at this port or one of the next is ready; empty: one is."""
    given = os.environ.get("HERD_METRICS_HOST", "127.0.0.1")
    host = _ANY.get(given, given)
    end_s = monotonic() + TIMEOUT_S
    asked: dict[socket.socket, int] = {}  # those that have not answered, and their ports
    complaints: dict[int, str] = {}
    for one in range(port, min(port + NUM_PORTS, 1 << 16)):
        try:
            asked[_ask(host, one)] = one
        except ConnectionRefusedError:
            continue
        except OSError as error:
            complaints[one] = f"the worker at {host}:{one} does not answer: {error}"
        if _is_ready(asked, complaints, min(end_s, monotonic() + PATIENCE_S)):
            return ""
    if _is_ready(asked, complaints, end_s):
        return ""
    complaints |= {one: f"the worker at {host}:{one} does not answer: timed out" for one in asked.values()}
    nobody = f"no worker answers at {host}:{port}: it begins, or has ended"
    return complaints[min(complaints)] if complaints else nobody


def _ask(host: str, port: int) -> socket.socket:
    """A connection at which a worker has been asked. Raises OSError."""
    one = socket.create_connection((host, port), PATIENCE_S)
    one.sendall(b"GET /health/ready HTTP/1.0\r\n\r\n")
    return one


def _is_ready(asked: dict[socket.socket, int], complaints: dict[int, str], until_s: float) -> bool:
    """Whether one of those that were asked says until then that it is ready. Who answers is asked no more."""
    while asked:
        heard, _, _ = select(list(asked), [], [], max(0, until_s - monotonic()))
        for one in heard:
            port = asked.pop(one)
            try:
                status, body = _answer(one)
            except OSError as error:
                complaints[port] = f"the worker at port {port} does not answer: {error}"
                continue
            if status == "200" and '"ready"' in body:
                return True
            complaints[port] = _reason(status, body)
        if not heard:
            break
    return False


def _answer(one: socket.socket) -> tuple[str, str]:
    """The status and the body of an answer that has begun. Raises OSError."""
    answer = b""
    with one:
        while part := one.recv(4096):
            answer += part
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    return head.split(" ")[1] if " " in head else "", body


def _reason(status: str, body: str) -> str:
    import json  # costs as much as all the rest

    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"what answers is no worker of ours: status {status or 'missing'}"
