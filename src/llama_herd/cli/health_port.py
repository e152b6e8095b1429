"""`herd health` where HERD_METRICS_PORT says at which port a worker answers: it costs a bare socket.

A container's engine runs it every few seconds beside a worker that needs the cores. So nothing of ours is
imported here, and nothing large.
"""

import os
import socket

#: Ports that are asked: that of the settings, and the next ones, which further workers of --gpus take.
NUM_PORTS = 16
#: How long an answer may take on a busy machine; shorter than what the files of containers allow.
TIMEOUT_S = 8.0

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
    complaints = []
    for one in range(port, min(port + NUM_PORTS, 1 << 16)):
        try:
            status, body = _ask(host, one)
        except ConnectionRefusedError:
            continue
        except OSError as error:
            complaints.append(f"the worker at {host}:{one} does not answer: {error}")
            continue
        if status == "200" and '"ready"' in body:
            return ""
        complaints.append(_reason(status, body))
    return complaints[0] if complaints else f"no worker answers at {host}:{port}: it begins, or has ended"


def _ask(host: str, port: int) -> tuple[str, str]:
    """The status and the body of a worker's answer. Raises OSError."""
    with socket.create_connection((host, port), TIMEOUT_S) as one:
        one.sendall(b"GET /health/ready HTTP/1.0\r\n\r\n")
        answer = b""
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
