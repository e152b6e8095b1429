"""Every subscriber reads the same list, by either client or by the gateway."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from functools import partial

import pytest

from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.tenant_client import TenantClient
from llama_herd.tasks.protocol.events import Event
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.client.playing_worker import NUM_TOKENS, PlayingWorker
from tests.tasks.herd import Herd, end, started, token

pytestmark = pytest.mark.redis

#: The events of a job after a number: the URL of Redis, the id, the number.
Subscriber = Callable[[str, str, int], Iterator[Event]]


def by_client(url: str, job_id: str, after: int) -> Iterator[Event]:
    with Client(url) as client, closing(client.stream(job_id, after=after, timeout_s=PATIENCE_S)) as stream:  # type: ignore[type-var]
        yield from stream


def by_async_client(url: str, job_id: str, after: int) -> Iterator[Event]:
    async def stream() -> AsyncGenerator[Event]:
        async with AsyncClient(url) as client:
            async for event in client.stream(job_id, after=after, timeout_s=PATIENCE_S):
                yield event

    return in_a_loop(stream())


def by_gateway(url: str, job_id: str, after: int) -> Iterator[Event]:
    async def stream() -> AsyncGenerator[Event]:
        settings = GatewaySettings.read(redis_url=url, gateway_heartbeat_s=1.0)
        connections = SharedConnections(url)
        client = TenantClient(settings, "default", connections)
        try:
            async with (
                client.reading(job_id, after=after) as reader,
                aclosing(client.events_of(reader)) as rounds,
            ):
                async for events in rounds:
                    for event in events:
                        yield event
        finally:
            await client.close()
            await connections.close()

    return in_a_loop(stream())


def in_a_loop(stream: AsyncGenerator[Event]) -> Iterator[Event]:
    """The same events for a thread."""

    async def next_one() -> Event | None:
        return await anext(stream, None)

    with asyncio.Runner() as runner:
        try:
            while event := runner.run(next_one()):
                yield event
        finally:
            runner.run(stream.aclose())


every_subscriber = pytest.mark.parametrize("subscribe", [by_client, by_async_client, by_gateway])


class Reader(threading.Thread):
    """Reads a job's events; `drops` lets it come back each few events with its cursor."""

    def __init__(self, subscribe: Subscriber, url: str, drops: bool = False) -> None:
        super().__init__(daemon=True)
        self.subscribe = subscribe
        self.url = url
        self.drops = drops
        self.events: list[Event] = []
        self.start()

    def run(self) -> None:
        while not self.events or self.events[-1].type != "end":
            after = self.events[-1].seq if self.events else 0
            with closing(self.subscribe(self.url, "a", after)) as stream:  # type: ignore[type-var]
                for event in stream:
                    self.events.append(event)
                    if self.drops and len(self.events) % 7 == 0:
                        break

    def has_read(self, num: int) -> bool:
        return len(self.events) == num

    @property
    def seqs(self) -> list[int]:
        return [event.seq for event in self.events]

    def read(self) -> list[Event]:
        self.join(PATIENCE_S)
        return self.events


@every_subscriber
def test_early_late_dropping_and_last_subscribers_read_the_same(
    subscribe: Subscriber, herd: Herd, redis_url: str
) -> None:
    herd.submit("a")
    readers = [Reader(subscribe, redis_url), Reader(subscribe, redis_url, drops=True)]
    worker = PlayingWorker(herd, "a", pause_at=20)
    worker.start()
    assert worker.has_paused.wait(PATIENCE_S)
    readers += [Reader(subscribe, redis_url), Reader(subscribe, redis_url, drops=True)]
    worker.may_go_on.set()
    worker.join(PATIENCE_S)
    readers.append(Reader(subscribe, redis_url))
    stored = herd.events("a")
    assert [event.seq for event in stored] == list(range(1, NUM_TOKENS + 3))
    assert [reader.read() for reader in readers] == [stored] * len(readers)


@every_subscriber
def test_a_subscriber_whose_connection_is_cut_again_and_again_misses_nothing(
    subscribe: Subscriber, herd: Herd, redis_url: str
) -> None:
    herd.submit("a")
    worker = PlayingWorker(herd, "a")
    herd.claimed("a")
    reader = Reader(subscribe, redis_url)
    for seq in range(1, NUM_TOKENS + 3):
        if seq in (3, 12, 25):
            wait_until(partial(reader.has_read, seq - 1), "it has read all so far")
            herd.wait_for_listener("a")
            herd.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        herd.emit("one", worker.entry(seq))
    assert reader.read() == herd.events("a")


@pytest.mark.long
@every_subscriber
def test_events_that_the_channel_lost_come_from_the_stream(
    subscribe: Subscriber, herd: Herd, redis_url: str
) -> None:
    herd.submit("a")
    herd.claim("a")
    reader = Reader(subscribe, redis_url)
    herd.emit("one", started("a"))
    wait_until(lambda: reader.seqs == [1], "the first is read")
    herd.wait_for_listener("a")
    # Events 2 and 3 are in the stream, but only 3 is heard.
    lost, heard = token("a", 2, 0), token("a", 3, 1)
    for entry in (lost, heard):
        herd.redis.xadd(herd.ledger.events_key("a"), {"e": entry.event}, id=f"{entry.seq}-0")
    herd.redis.publish(herd.ledger.channel("a"), heard.event)
    wait_until(lambda: reader.seqs == [1, 2, 3], "both are read")
    # The end is not heard at all: silence leads to it.
    herd.redis.hset(herd.ledger.job_key("a"), mapping={"seq": 3, "n": 2})
    herd.redis.xadd(herd.ledger.events_key("a"), {"e": end("a", 4, 2).event}, id="4-0")
    reader.join(PATIENCE_S)
    assert reader.seqs == [1, 2, 3, 4]


@every_subscriber
def test_a_cursor_at_the_end_has_nothing_to_wait_for(
    subscribe: Subscriber, herd: Herd, redis_url: str
) -> None:
    herd.submit("a")
    herd.claim("a")
    herd.emit("one", started("a"), end("a", 2, 0))
    assert [event.seq for event in subscribe(redis_url, "a", 1)] == [2]
    assert list(subscribe(redis_url, "a", 2)) == []
