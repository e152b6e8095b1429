"""Reads streams through gateways that come and go: each from where the last one was cut off."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from llama_herd.tasks.protocol.events import End, Event, parse_event
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import events_of


def read_whole(
    url: Callable[[], str], job_id: str, is_over: threading.Event, patience_s: float
) -> list[Event]:
    """All events of a job in the order in which they came. url: asked for before each request.

    is_over: nobody waits for them any more.
    """
    seen: list[Event] = []

    def has_ended() -> bool:
        with suppress(OSError, HTTPException):
            for event in _events(url(), job_id, seen[-1].seq if seen else 0):
                seen.append(event)
        return is_over.is_set() or (bool(seen) and isinstance(seen[-1], End))

    wait_until(has_ended, f"the stream of {job_id} ends", patience_s)
    return seen


def _events(url: str, job_id: str, after: int) -> Iterator[Event]:
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=30)
    try:
        connection.request("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(after)})
        answer = connection.getresponse()
        if answer.status == 200:
            yield from (parse_event(one.data) for one in events_of(answer) if one.number is not None)
    finally:
        connection.close()
