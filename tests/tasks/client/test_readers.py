"""All streams of a client share a few connections, and each reads what is stored."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import pytest
from redis import Redis, __version__ as redis_version

from llama_herd.errors import JobNotFound, NotPermitted, RedisUnavailable
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.client import readers as readers_module, shared_connections
from llama_herd.tasks.client.core import ClientCore
from llama_herd.tasks.client.follower import Follower, read_new
from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.client.readers import Reader, Readers
from llama_herd.tasks.client.shared_connections import SharedConnections
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.client.playing_worker import NUM_TOKENS, PlayingWorker
from tests.tasks.herd import Herd, end, started, token

pytestmark = pytest.mark.redis

SILENCE_S = 0.1
#: More than the connections of one client, and fewer than its streams.
FEW_CLIENTS = 80


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis that no other test uses."""
    with EmbeddedRedis() as server:
        yield server


@asynccontextmanager
async def readers_at(url: str, silence_s: float = SILENCE_S) -> AsyncIterator[Readers]:
    """Readers that are soon taken for silent."""
    readers = Readers(Ledger(), SharedConnections(url), silence_s)
    try:
        yield readers
    finally:
        await readers.close()
        await readers.connections.close()


async def rounds_of(readers: Readers, reader: Reader, url: str) -> AsyncGenerator[list[Event]]:
    core = ClientCore(Settings.read(redis_url=url))
    read = partial(read_new, core.ledger, reader.follower)
    events_of = partial(reader.events, lambda: readers.connections.run(read()), is_patient_at_first=False)
    async with aclosing(events_of(0.0)) as found:
        async for events in found:
            yield events


async def follow(readers: Readers, url: str, job_id: str, seen: list[Any], **options: Any) -> None:
    """Note a job's events, and before them its places."""
    async with (
        readers.reading(Follower(job_id, **options), asks_place=True) as reader,
        aclosing(rounds_of(readers, reader, url)) as found,
    ):
        async for events in found:
            seen.extend(events or ([] if reader.place is None else [reader.place.position]))


async def until(is_true: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, is_true, what)


def test_early_late_and_returning_readers_over_one_subscription_read_what_is_stored(
    redis_url: str, herd: Herd
) -> None:
    """Also when that one is lost again and again."""
    job_ids = [f"job-{number}" for number in range(10)]
    for job_id in job_ids:
        herd.submit(job_id)

    async def read(client: AsyncClient, job_id: str, *, returns: bool) -> list[Event]:
        found: list[Event] = []
        while not found or found[-1].type != "end":
            after = found[-1].seq if found else 0
            async with aclosing(client.stream(job_id, after=after, timeout_s=PATIENCE_S)) as events:  # type: ignore[type-var]
                async for event in events:
                    found.append(event)
                    if returns and len(found) % 7 == 0:
                        break
        return found

    async def scene() -> None:
        async with AsyncClient(redis_url) as client:
            early = [asyncio.create_task(read(client, job_id, returns=False)) for job_id in job_ids * 5]
            early += [asyncio.create_task(read(client, job_id, returns=True)) for job_id in job_ids * 2]
            workers = [PlayingWorker(herd, job_id, pause_at=20) for job_id in job_ids]
            for worker in workers:
                await asyncio.to_thread(herd.wait_for_listener, worker.job_id)
                worker.start()
            herd.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            for worker in workers:
                assert await asyncio.to_thread(worker.has_paused.wait, PATIENCE_S)
            late = [asyncio.create_task(read(client, job_id, returns=False)) for job_id in job_ids]
            herd.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            for worker in workers:
                worker.may_go_on.set()
            lists = await asyncio.gather(*early, *late)
            lists += [await read(client, job_id, returns=False) for job_id in job_ids]
        stored = {job_id: herd.events(job_id) for job_id in job_ids}
        assert {len(events) for events in stored.values()} == {NUM_TOKENS + 2}
        assert all(events == stored[events[0].job] for events in lists)

    asyncio.run(scene())


def test_what_was_published_while_the_subscription_was_lost_is_read_once_it_is_back(
    redis_url: str, herd: Herd
) -> None:
    async def scene() -> None:
        async with readers_at(redis_url, silence_s=3600) as readers:
            seen: list[list[Any]] = [[] for _ in range(5)]
            reading = [asyncio.create_task(follow(readers, redis_url, "a", one)) for one in seen]
            await asyncio.to_thread(herd.wait_for_listener, "a")
            herd.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            herd.emit("one", end("a", 2, 0))
            await asyncio.wait_for(asyncio.gather(*reading), PATIENCE_S)
        assert seen == [herd.events("a")] * 5

    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    asyncio.run(scene())


def test_four_hundred_streams_fit_beside_others_where_few_clients_may(own_redis: EmbeddedRedis) -> None:
    async def scene(redis: Any, herd: Herd) -> None:
        async with AsyncClient(own_redis.url) as client:
            readings = [asyncio.create_task(client.result("a", wait=True)) for _ in range(400)]
            readings += [asyncio.create_task(client.result(f"b{number}", wait=True)) for number in range(10)]
            await until(lambda: redis.info()["pubsub_channels"] == 11, "all are subscribed")
            with Client(own_redis.url) as other:
                for job_id in ("a", *(f"b{number}" for number in range(10))):
                    other.submit(prompt="x", job_id=job_id)
                    herd.claimed(job_id)
                    herd.emit("one", started(job_id), end(job_id, 2, 0))
            assert {(await reading).finish_reason for reading in readings} == {"stop"}
        assert redis.info()["rejected_connections"] == 0

    with Redis.from_url(own_redis.url) as redis:
        redis.config_set("maxclients", FEW_CLIENTS)
        asyncio.run(scene(redis, Herd(redis, Ledger(lease_ms=60_000, worker="w"))))


#: For asyncio, redis-py before 8 writes on to a connection that Redis has closed with these words, and may
#: so lose them.
MAY_LOSE_WORDS = int(redis_version.split(".")[0]) < 8


def test_a_full_redis_says_so_in_each_client(own_redis: EmbeddedRedis) -> None:
    async def stream() -> None:
        async with AsyncClient(own_redis.url) as client:
            await client.result("a")

    full = r"maxclients.* Fix: .*CONFIG SET maxclients"
    with Redis.from_url(own_redis.url) as redis:
        redis.config_set("maxclients", 1)
        with pytest.raises(RedisUnavailable, match=rf"{full}|cannot be reached" if MAY_LOSE_WORDS else full):
            asyncio.run(stream())
        with Client(own_redis.url) as client:
            with pytest.raises(RedisUnavailable, match=full):
                client.submit(prompt="x")
            with pytest.raises(RedisUnavailable, match=full):
                client.result("a")


#: Of one look at all waiting readers, with those that are silent at different times.
MOST_COMMANDS = 25


@pytest.mark.parametrize("num", [20, 200])
def test_the_commands_for_readers_that_wait_do_not_grow_with_their_number(
    own_redis: EmbeddedRedis, num: int
) -> None:
    async def scene(redis: Any) -> None:
        def calls() -> dict[str, int]:
            found = {name: one["calls"] for name, one in redis.info("commandstats").items()}
            return {"cmdstat_zcard": 0} | {
                name: found[name] for name in found.keys() - {"cmdstat_info", "cmdstat_config|resetstat"}
            }

        async with readers_at(own_redis.url) as readers:
            seen: list[list[Any]] = [[] for _ in range(num)]
            reading = [
                asyncio.create_task(follow(readers, own_redis.url, str(number), seen[number]))
                for number in range(num)
            ]
            await until(lambda: all(seen), "each is told its place")
            redis.config_resetstat()
            await until(lambda: calls()["cmdstat_zcard"] >= 10, "there were looks")
            found = calls()
            assert sum(found.values()) < MOST_COMMANDS * found["cmdstat_zcard"]
            assert [places[-1] for places in seen] == list(range(1, num + 1))
            herd.claimed("0")
            await until(lambda: [places[-1] for places in seen[1:]] == list(range(1, num)), "they are told")
            await cancelled(reading)

    with Redis.from_url(own_redis.url) as redis:
        herd = Herd(redis, Ledger(lease_ms=60_000, worker="w"))
        for number in range(num):
            herd.submit(str(number))
            herd.pass_time(str(number), num - number)  # of one millisecond the names would count
        asyncio.run(scene(redis))


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_what_the_channel_lost_is_read_in_one_look_for_all(redis_url: str, redis: Redis, herd: Herd) -> None:
    async def scene() -> None:
        async with readers_at(redis_url) as readers:
            seen: list[list[Any]] = [[] for _ in range(5)]
            reading = [asyncio.create_task(follow(readers, redis_url, "a", one)) for one in seen]
            await until(lambda: all(one and one[-1] == first for one in seen), "all have read the first")
            for entry in (token("a", 2, 0), end("a", 3, 1)):
                redis.xadd(herd.ledger.events_key("a"), {"e": entry.event}, id=f"{entry.seq}-0")
            await asyncio.wait_for(asyncio.gather(*reading), PATIENCE_S)
        assert seen == [herd.events("a")] * 5

    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    [first] = herd.events("a")
    asyncio.run(scene())


def test_a_reader_is_looked_at_when_its_tick_is_due(
    redis_url: str, herd: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s, now_s = monotonic(), 0.0
    monkeypatch.setattr(readers_module, "monotonic", lambda: began_s + now_s)
    herd.submit("a")

    async def scene() -> None:
        nonlocal now_s
        async with (
            readers_at(redis_url, 1.0) as readers,
            readers.reading(Follower("a"), tick_s=1.2) as reader,
        ):
            assert await reader.inbox.take(PATIENCE_S) is None  # it listens
            reader.follower.ends_at_s = inf  # as a look at the record tells
            now_s = 1.1
            await until(lambda: reader.due_s == reader.tick_at_s, "its silence was looked at")
            now_s = 1.3
            assert await reader.inbox.take(PATIENCE_S) == []

    asyncio.run(scene())


def test_a_silent_reader_hears_that_its_job_is_forgotten(redis_url: str, redis: Redis, herd: Herd) -> None:
    async def scene() -> None:
        async with readers_at(redis_url) as readers:
            seen: list[Any] = []
            reading = asyncio.create_task(follow(readers, redis_url, "a", seen))
            await until(lambda: seen, "it has read the first")
            redis.flushall()
            with pytest.raises(JobNotFound):
                await asyncio.wait_for(reading, PATIENCE_S)

    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    asyncio.run(scene())


def test_a_job_that_does_not_exist_yet_is_waited_for_without_reading(
    redis_url: str, redis: Redis, herd: Herd
) -> None:
    async def scene() -> None:
        async with readers_at(redis_url) as readers:
            seen: list[Any] = []
            reading = asyncio.create_task(follow(readers, redis_url, "a", seen))
            await asyncio.to_thread(herd.wait_for_listener, "a")
            redis.config_resetstat()

            def looks() -> Any:
                return redis.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"]

            await until(lambda: looks() > 3, "it was looked after")
            redis.config_resetstat()
            await until(lambda: looks() > 3, "it was looked after again")
            assert "cmdstat_xrange" not in redis.info("commandstats")
            herd.submit("a")
            herd.claimed("a")
            herd.emit("one", started("a"), end("a", 2, 0))
            await asyncio.wait_for(reading, PATIENCE_S)
            assert seen[-2:] == herd.events("a")

    asyncio.run(scene())


def test_one_client_serves_one_loop_after_another(redis_url: str, herd: Herd) -> None:
    client = AsyncClient(redis_url)

    async def talk(job_id: str) -> None:
        await client.submit(prompt="x", job_id=job_id)
        watching = client.watch(job_id)
        assert isinstance(await anext(watching), Queued)
        herd.claimed(job_id)
        herd.emit("one", started(job_id), end(job_id, 2, 0))
        assert [event async for event in watching] == herd.events(job_id)
        assert (await client.result(job_id)).finish_reason == "stop"

    for job_id in ("a", "b", "c"):
        asyncio.run(talk(job_id))
    asyncio.run(client.close())


def test_one_client_serves_the_loops_of_several_threads(redis_url: str) -> None:
    """While one thread looks for loops that are closed, loops of others come and go."""
    client = AsyncClient(redis_url)

    def ask() -> None:
        asyncio.run(client.count_jobs())

    class SlowLoop(asyncio.SelectorEventLoop):
        asks_meanwhile = False

        def is_closed(self) -> bool:
            if self.asks_meanwhile:
                self.asks_meanwhile = False
                with ThreadPoolExecutor() as others:
                    others.submit(ask).result()
            return super().is_closed()

    loop = SlowLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(client.count_jobs())
    loop.asks_meanwhile = True
    ask()


NEVER_CLOSED = """
import asyncio, sys
from llama_herd.tasks import AsyncClient

async def main():
    await AsyncClient(sys.argv[1]).result("a")

asyncio.run(main())
"""

NEVER_READ_ON = """
import asyncio, sys
from llama_herd.tasks import AsyncClient

async def main(kept):
    async with AsyncClient(sys.argv[1]) as client:
        kept.append(client.watch("a"))
        await anext(kept[0])
        dropped = client.stream("a")
        await anext(dropped)

asyncio.run(main([]))
"""


@pytest.mark.parametrize("script", [NEVER_CLOSED, NEVER_READ_ON])
def test_what_is_never_closed_ends_with_its_loop(redis_url: str, herd: Herd, script: str) -> None:
    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"), end("a", 2, 0))
    command = [sys.executable, "-c", script, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_subscription_ends_once_nobody_has_listened_for_a_while(
    own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_connections, "IDLE_S", 0.05)
    monkeypatch.setattr(shared_connections, "PING_S", 0.05)

    def subscribers(redis: Any) -> list[Any]:
        return [one for one in redis.client_list() if one["cmd"] in ("subscribe", "unsubscribe", "ping")]

    async def scene(redis: Any) -> None:
        async with AsyncClient(own_redis.url) as client:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await client.result("a", timeout_s=0.3)
                await until(lambda: not subscribers(redis), "nobody is connected to listen")

    with Redis.from_url(own_redis.url) as redis:
        herd = Herd(redis, Ledger(lease_ms=60_000, worker="w"))
        herd.submit("a")
        asyncio.run(scene(redis))


def test_who_may_not_listen_is_told(own_redis: EmbeddedRedis) -> None:
    with Redis.from_url(own_redis.url) as redis:
        rules = ["on", ">x", "~*", "+@all", "resetchannels"]
        redis.execute_command("ACL", "SETUSER", "deaf", *rules)

    async def scene() -> None:
        url = own_redis.url.replace("redis://", "redis://deaf:x@")
        async with AsyncClient(url) as client:
            with pytest.raises(NotPermitted):
                await asyncio.wait_for(client.result("a", wait=True), PATIENCE_S)

    asyncio.run(scene())


def test_a_stream_under_way_ends_with_the_client(redis_url: str, herd: Herd) -> None:
    herd.submit("a")

    async def scene() -> None:
        client = AsyncClient(redis_url)
        reading = asyncio.create_task(client.result("a"))
        await asyncio.to_thread(herd.wait_for_listener, "a")
        await client.close()
        with pytest.raises(RedisUnavailable, match="closed"):
            await asyncio.wait_for(reading, PATIENCE_S)

    asyncio.run(scene())


NUM_STREAMS = 50


@pytest.mark.parametrize("num_rounds", [0, 1, 5, 10, 20])
def test_a_closed_client_leaves_no_connection_wherever_its_calls_were(
    own_redis: EmbeddedRedis, num_rounds: int
) -> None:
    """A call under way would connect again."""

    async def scene(redis: Any) -> list[Any]:
        client = AsyncClient(own_redis.url)
        calls: list[Any] = [client.result("a", wait=True) for _ in range(NUM_STREAMS)]
        calls += [client.embed([text], model="tales") for text in "abc"]
        asked = [asyncio.create_task(call) for call in calls]
        for _ in range(num_rounds + 1):  # with one they have all begun
            await asyncio.sleep(0)
        await client.close()
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE_S)
        await until(lambda: len(redis.client_list()) == 1, "no connection is left")
        assert await client.count_jobs() == 1
        await client.close()
        return found

    with Redis.from_url(own_redis.url) as redis:
        Herd(redis, Ledger()).submit("a")
        for error in asyncio.run(scene(redis)):
            assert isinstance(error, RedisUnavailable)
            assert "closed" in str(error)
