"""All streams share one subscription, and nobody's slowness is kept for them."""

import asyncio
import ssl
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.client.shared_connections import MAX_WAITING, MAX_WAITING_BYTES, Inbox
from llama_herd.tasks.connection.cancels import cancel_tasks as end_tasks
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import Herd, end, started, token
from tests.tls import Identity


@pytest.mark.parametrize("message", [b"x", b"x" * MAX_WAITING_BYTES])
def test_a_full_inbox_is_emptied_and_says_that_something_is_missing(message: bytes) -> None:
    async def scene() -> None:
        inbox = Inbox()
        for _ in range(MAX_WAITING + 1):
            inbox.put(message)
        assert await inbox.take(0) is None
        inbox.put(b"after")
        assert await inbox.take(0) == [b"after"]
        assert await inbox.take(0) is None

    asyncio.run(scene())


def test_a_task_that_loses_a_cancel_ends_all_the_same() -> None:
    """asyncio.wait_for may lose one before Python 3.12."""

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    async def scene() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await asyncio.wait_for(end_tasks(task), 10)
        assert task.done()

    asyncio.run(scene())


@pytest.mark.redis
def test_many_streams_are_one_connection(redis: Redis, gateway: GatewayThread, herd: Herd) -> None:
    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    with ExitStack() as stack:
        streams = [stack.enter_context(gateway.send("GET", "/v1/jobs/a/events")) for _ in range(20)]
        readers = [events_of(answer) for answer in streams]
        assert [next(reader).number for reader in readers] == [1] * 20
        wait_until(lambda: redis.pubsub_numsub(herd.ledger.channel("a"))[0][1] == 1, "subscribed once")
        herd.emit("one", token("a", 2, 0), end("a", 3, 1))
        assert [[one.number for one in reader] for reader in readers] == [[2, 3]] * 20
    wait_until(lambda: redis.pubsub_numsub(herd.ledger.channel("a"))[0][1] == 0, "unsubscribed")
    assert gateway.context.connections.hub.num_channels == 0


@pytest.mark.redis
def test_the_stream_of_a_new_job_is_read_once(redis: Redis, gateway: GatewayThread, herd: Herd) -> None:
    """When Redis has confirmed the subscription: all that comes after that is heard."""

    def num_reads() -> int:
        return int(redis.info("commandstats").get("cmdstat_xrange", {}).get("calls", 0))

    redis.config_resetstat()
    with ThreadPoolExecutor() as asking:
        body = {"model": "tales", "prompt": "Once"}
        asked = asking.submit(gateway.ask, "POST", "/v1/completions", body)
        wait_until(num_reads, "the stream is read")
        channels: list[Any] = redis.pubsub_channels(herd.ledger.channel("*"))
        job_id = channels[0].decode().rpartition(":")[2]
        herd.claimed(job_id)
        herd.emit("one", started(job_id), token(job_id, 2, 0), end(job_id, 3, 1))
        assert asked.result().status == 200
    assert num_reads() == 1


@pytest.mark.redis
def test_tls_by_files(redis_url: str, herd: Herd, tmp_path: Path) -> None:
    own = Identity.make(tmp_path, "127.0.0.1")
    trust = ssl.create_default_context(cafile=own.file)
    with GatewayThread(redis_url, cert_file=str(own.file), key_file=str(own.file)) as gateway:
        assert gateway.url.startswith("https://")
        with urllib.request.urlopen(f"{gateway.url}/v1/models", context=trust, timeout=20) as answer:
            assert answer.status == 200
