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
from llama_herd.tasks.gateway.routes import OPERATIONS
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


ASKED = [
    ("/v1/completions", {"model": "tales", "prompt": "Once"}),
    ("/v1/completions", {"model": "tales", "prompt": ["Once", "Twice"], "stream": True}),
    ("/v1/chat/completions", {"model": "tales", "messages": [{"role": "user", "content": "Once"}]}),
    ("/v1/responses", {"model": "tales", "input": "Once"}),
    ("/v1/responses", {"model": "tales", "input": "Once", "stream": True, "background": True}),
    ("/tokenize", {"model": "tales", "prompt": "Once"}),
    ("/detokenize", {"model": "tales", "tokens": [1]}),
    ("/v1/embeddings", {"model": "tales", "input": "Once"}),
    ("/v1/rerank", {"model": "tales", "query": "Once", "documents": ["Twice"]}),
]


#: They store what comes.
STORING = {"/v1/files", "/v1/batches"}


def test_every_route_is_asked_that_answers_a_body_with_what_jobs_say() -> None:
    found = {one.path for one in OPERATIONS if (one.method, one.status) == ("post", 200) and one.body}
    assert found - STORING == {path for path, _ in ASKED}


@pytest.mark.redis
@pytest.mark.parametrize(("path", "body"), ASKED)
def test_the_stream_of_a_new_job_is_not_read(
    redis: Redis, gateway: GatewayThread, herd: Herd, path: str, body: dict[str, Any]
) -> None:
    """The gateway listens before it submits the job, and so hears all of it."""
    num_jobs = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    redis.config_resetstat()
    with ThreadPoolExecutor() as asking:
        asked = asking.submit(gateway.ask, "POST", path, body)
        wait_until(lambda: heard_and_waiting(redis, herd, num_jobs), "the jobs are submitted")
        for job_id in heard_and_waiting(redis, herd, num_jobs):
            herd.claimed(job_id)
            herd.emit("one", started(job_id), token(job_id, 2, 0), end(job_id, 3, 1))
        asked.result()  # of ids and ranks it is an error: no worker has told of any
    assert num_calls(redis, "xrange") == 0


def heard_and_waiting(redis: Redis, herd: Herd, num: int) -> list[str]:
    """The jobs that were submitted and that somebody listens to, once there are so many."""
    channels: list[Any] = redis.pubsub_channels(herd.ledger.channel("*"))
    heard = [one.decode().rpartition(":")[2] for one in channels]
    jobs = [job_id for job_id in heard if redis.exists(herd.ledger.job_key(job_id))]
    return jobs if len(jobs) == num else []


def num_calls(redis: Redis, command: str) -> int:
    return int(redis.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


@pytest.mark.redis
def test_what_is_said_while_the_subscription_is_lost_is_read(
    redis: Redis, gateway: GatewayThread, herd: Herd
) -> None:
    with ThreadPoolExecutor() as asking:
        asked = asking.submit(gateway.ask, "POST", "/v1/completions", {"model": "tales", "prompt": "Once"})
        wait_until(lambda: heard_and_waiting(redis, herd, 1), "the job is submitted")
        [job_id] = heard_and_waiting(redis, herd, 1)
        herd.claimed(job_id)
        assert redis.client_kill_filter(_type="pubsub") == 1
        herd.emit("one", started(job_id), token(job_id, 2, 0), end(job_id, 3, 1))
        assert asked.result().status == 200


@pytest.mark.redis
def test_the_stream_of_a_job_under_a_key_is_read_once(
    redis: Redis, gateway: GatewayThread, herd: Herd
) -> None:
    """The same request may have come before."""
    redis.config_resetstat()
    with ThreadPoolExecutor() as asking:
        body, headers = {"model": "tales", "prompt": "Once"}, {"Idempotency-Key": "mine"}
        asked = asking.submit(gateway.ask, "POST", "/v1/completions", body, headers)
        wait_until(lambda: num_calls(redis, "xrange"), "the stream is read")
        [job_id] = heard_and_waiting(redis, herd, 1)
        herd.claimed(job_id)
        herd.emit("one", started(job_id), token(job_id, 2, 0), end(job_id, 3, 1))
        assert asked.result().status == 200
    assert num_calls(redis, "xrange") == 1


@pytest.mark.redis
def test_tls_by_files(redis_url: str, herd: Herd, tmp_path: Path) -> None:
    own = Identity.make(tmp_path, "127.0.0.1")
    trust = ssl.create_default_context(cafile=own.file)
    with GatewayThread(redis_url, cert_file=str(own.file), key_file=str(own.file)) as gateway:
        assert gateway.url.startswith("https://")
        with urllib.request.urlopen(f"{gateway.url}/v1/models", context=trust, timeout=20) as answer:
            assert answer.status == 200
