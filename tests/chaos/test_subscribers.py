"""Subscribers that do not read, come late, or come and go: the herd does not wait for them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from urllib.parse import urlsplit

import pytest

from llama_herd.tasks.events import Event
from tests.chaos.herd import Herd

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

NUM_STUCK = 50
#: A flapping subscriber leaves after so many events.
FLAP_EVENTS = 20


def tokens_per_s(herd: Herd) -> float:
    """Run some jobs through a worker that does its best."""
    started_s = monotonic()
    results = herd.results(herd.submit(8))
    return sum(len(result.ids) for result in results) / (monotonic() - started_s)


@contextmanager
def stuck_subscribers(herd: Herd) -> Iterator[None]:
    """Subscribers to everything that never read a byte of it."""
    address = urlsplit(herd.url)
    with ExitStack() as sockets:
        for _ in range(NUM_STUCK):
            one = sockets.enter_context(socket.create_connection((address.hostname, address.port)))
            one.sendall(b"PSUBSCRIBE herd:default:tokens:*\r\n")
        yield


def test_stuck_and_flapping_subscribers_hold_nothing_up(herd: Herd, figures: list[str]) -> None:
    herd.workers(1, step_s=0)
    tokens_per_s(herd)
    alone = tokens_per_s(herd)
    with stuck_subscribers(herd):
        beside = tokens_per_s(herd)
    figures.append(f"{NUM_STUCK} stuck subscribers: {100 * beside / alone:.0f} % of the tokens/s without")
    herd.check()


def test_a_subscriber_that_comes_and_goes_reads_the_whole_stream(herd: Herd) -> None:
    herd.workers(1)
    (job_id,) = herd.submit(1)
    seen: list[Event] = []
    while not seen or seen[-1].type != "end":
        for event in herd.client.stream(job_id, after=len(seen)):
            seen.append(event)
            if len(seen) % FLAP_EVENTS == 0:
                break
    assert seen == herd.events(job_id)
    herd.check()
