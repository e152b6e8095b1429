"""What another thread hands to Celery's hub runs at once, whichever kombu there is."""

import socket
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest
from kombu.asynchronous import Hub

from llama_herd.worker.pool import EnginePool
from tests.local.processes import wait_until

#: Much longer than a test lasts.
POLL_S = 600.0


class Service:
    def note_consuming(self) -> None:
        """Nobody asks."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """One with a connection: without any it sleeps in short pauses."""
    hub = Hub()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hub.add_reader(ours, lambda: None)
        yield hub
        hub.close()


@pytest.fixture
def run(hub: Hub) -> Iterator[Callable[[], Event]]:
    """Runs the hub on a thread of its own; what it gives is set while the hub polls."""
    polls, loops, may_end = Event(), list[Thread](), Event()
    poll = hub.poller.poll

    def watched(_: float) -> Any:
        polls.set()
        found = poll(POLL_S)
        polls.clear()
        return found

    def loop() -> None:
        hub.poller.poll = watched
        for _ in hub.create_loop():
            if may_end.is_set():
                return

    def begin() -> Event:
        loops.append(Thread(target=loop, daemon=True))
        loops[0].start()
        return polls

    yield begin
    may_end.set()
    hub.call_soon(lambda: None)


def pool_at(hub: Hub) -> EnginePool:
    pool = EnginePool.__new__(EnginePool)
    pool._service = Service()  # type: ignore[assignment]
    pool.register_with_event_loop(hub)
    return pool


@pytest.mark.parametrize("num", [1, 3])
def test_it_runs_while_the_hub_polls(hub: Hub, run: Callable[[], Event], num: int) -> None:
    pool, polls = pool_at(hub), run()
    for _ in range(num):
        wait_until(polls.is_set, "the hub polls")
        has_run = Event()
        pool._call_soon(has_run.set)
        wait_until(has_run.is_set, "it runs")
