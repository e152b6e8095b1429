"""Subscribers to everything, by pub/sub alone, that read badly.

Stuck ones never read. Slow ones read some bytes of each connection ten times a second. Of the flapping ones,
one leaves and another one comes ten times a second.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

READ_BYTES = 1024
#: Most bytes that a flapping subscriber reads before it leaves.
FLAP_BYTES = 20_000
PAUSE_S = 0.1


class Crowd:
    """Connections to which every event of every job is sent, the oldest first."""

    def __init__(self, url: str, channels: str) -> None:
        """`channels` is a pattern of the channels' names."""
        self.sockets: list[socket.socket] = []
        self._url = urlsplit(url)
        self._channels = channels

    def join(self) -> None:
        """Add one subscriber."""
        one = socket.create_connection((self._url.hostname, self._url.port))
        one.sendall(f"PSUBSCRIBE {self._channels}\r\n".encode())
        self.sockets.append(one)

    def close(self) -> None:
        for one in self.sockets:
            one.close()


#: What a crowd does at each turn.
CrowdTurn = Callable[[Crowd], None]


def read_nothing(crowd: Crowd) -> None:
    """Read nothing."""


def read_a_little(crowd: Crowd) -> None:
    """Read a little of each."""
    for one in crowd.sockets:
        read_some(one)


def replace_oldest(crowd: Crowd) -> None:
    """The oldest reads a little and leaves, and another one comes."""
    with crowd.sockets.pop(0) as oldest:
        num_left = FLAP_BYTES
        while num_left > 0 and (num_read := read_some(oldest)):
            num_left -= num_read
    crowd.join()


def read_some(one: socket.socket) -> int:
    """The number of bytes that were read; also 0 if Redis has closed the connection."""
    try:
        return len(one.recv(READ_BYTES, socket.MSG_DONTWAIT))
    except (BlockingIOError, ConnectionError):
        return 0


@contextmanager
def crowd_of(num: int, url: str, channels: str, turn: CrowdTurn) -> Iterator[Crowd]:
    """A crowd of `num` subscribers that take their turns within the block."""
    crowd, is_over = Crowd(url, channels), threading.Event()
    for _ in range(num):
        crowd.join()

    def take_turns() -> None:
        while not is_over.wait(PAUSE_S):
            turn(crowd)

    thread = threading.Thread(target=take_turns, name="crowd")
    thread.start()
    try:
        yield crowd
    finally:
        is_over.set()
        thread.join()
        crowd.close()
