"""Subscribers that do not read: the herd does not wait for them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from llama_herd.worker.chaos.herd import Herd

NUM_STUCK = 50


@contextmanager
def stuck(herd: Herd) -> Iterator[list[str]]:
    """Subscribers to everything that never read a byte of it."""
    address = urlsplit(herd.server.url)
    with ExitStack() as sockets:
        for _ in range(NUM_STUCK):
            one = sockets.enter_context(socket.create_connection((address.hostname, address.port)))
            one.sendall(f"PSUBSCRIBE {herd.jobs.ledger.channel('*')}\r\n".encode())
        yield herd.jobs.running()
