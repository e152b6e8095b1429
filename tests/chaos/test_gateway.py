"""What a gateway goes through: deaths, a Redis that is away, and clients of every bad kind."""

import random
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks import Client
from llama_herd.tasks.events import End, Event, parse_event
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.local.redis_server import EmbeddedRedis
from tests.tasks.gateway.gateway_thread import events_of
from tests.tiny import write_tiny_gguf
from tests.worker.gateway_process import GatewayProcess
from tests.worker.processes import WorkerProcess, peak_bytes

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.fault, pytest.mark.timeout(180)]

#: Some seconds of a tiny model that never stops by itself.
LONG: dict[str, Any] = {"prompt": "the secret prompt", "sampling": {"max_tokens": 3000, "seed": 5}}
MB = 1 << 20


def connect(url: str) -> HTTPConnection:
    place = urlsplit(url)
    return HTTPConnection(place.hostname or "", place.port, timeout=60)


def follow(url: str, job_id: str, after: int = 0) -> HTTPResponse:
    connection = connect(url)
    connection.request("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(after)})
    return connection.getresponse()


def numbered(answer: HTTPResponse) -> Iterator[Event]:
    """The events that belong to the job, up to wherever the stream ends."""
    with suppress(HTTPException, OSError):
        for one in events_of(answer):
            if one.number is not None:
                yield parse_event(one.data)


def read(url: str, job_id: str) -> list[Event]:
    return list(numbered(follow(url, job_id)))


def have_all_said(client: Client, job_ids: list[str], num_tokens: int) -> bool:
    return all(client.history(job_id).record.n > num_tokens for job_id in job_ids)


def raw(url: str) -> socket.socket:
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), timeout=60)


@pytest.fixture
def slow_worker(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis with a file, and a worker whose jobs take seconds."""
    path = write_tiny_gguf(tmp_path / "endless.gguf", eos=False, context_length=8192)
    with EmbeddedRedis(appendonly=True) as server:
        options: dict[str, Any] = {"model_name": "tales", "slots": 4, "kv_cache_tokens": 8192}
        with WorkerProcess(server.url, path, "w", tmp_path / "worker.log", **options):
            yield server


def test_a_stream_goes_on_at_another_gateway(slow_worker: EmbeddedRedis, tmp_path: Path) -> None:
    with GatewayProcess(slow_worker.url, tmp_path / "one.log") as one, Client(slow_worker.url) as client:
        job_id = client.submit(**LONG)
        seen: list[Event] = []
        for event in numbered(follow(one.url, job_id)):
            seen.append(event)
            if len(seen) == 50:
                one.kill()
        assert not isinstance(seen[-1], End)
        with GatewayProcess(slow_worker.url, tmp_path / "two.log") as two:
            seen += numbered(follow(two.url, job_id, seen[-1].seq))
        assert seen == list(client.stream(job_id))


def test_all_streams_of_a_killed_gateway_go_on_at_one_that_is_up(
    slow_worker: EmbeddedRedis, tmp_path: Path
) -> None:
    one = GatewayProcess(slow_worker.url, tmp_path / "one.log")
    two = GatewayProcess(slow_worker.url, tmp_path / "two.log")
    were_cut_off: list[bool] = []
    with one, two, Client(slow_worker.url) as client, ThreadPoolExecutor(8) as pool:
        job_ids = [client.submit(**LONG) for _ in range(4)]

        def read_on(job_id: str) -> list[Event]:
            seen = list(numbered(follow(one.url, job_id)))
            were_cut_off.append(not any(isinstance(event, End) for event in seen))
            return seen + list(numbered(follow(two.url, job_id, len(seen))))

        readers = [(job_id, pool.submit(read_on, job_id)) for job_id in job_ids * 2]
        list(islice(numbered(follow(one.url, job_ids[-1])), 20))
        one.kill()
        for job_id, reader in readers:
            assert reader.result(120) == list(client.stream(job_id))
        assert any(were_cut_off)


def test_streams_outlive_a_redis_that_is_away(slow_worker: EmbeddedRedis, tmp_path: Path) -> None:
    with GatewayProcess(slow_worker.url, tmp_path / "log") as gateway, Client(slow_worker.url) as client:
        job_ids = [client.submit(**LONG) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read, gateway.url, job_id) for job_id in job_ids]
            wait_until(partial(have_all_said, client, job_ids, 50), "all run")
            slow_worker.stop()
            threading.Event().wait(5)
            slow_worker.start()
            for job_id, reader in zip(job_ids, readers, strict=True):
                assert reader.result(120) == list(client.stream(job_id))
        assert "secret" not in gateway.log


def bad_clients(url: str, job_id: str, num: int) -> list[socket.socket]:
    """Clients that ask for a stream and read nothing of it."""
    made = [raw(url) for _ in range(num)]
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.sendall(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return made


def test_who_does_not_read_costs_little_and_holds_up_nobody(
    slow_worker: EmbeddedRedis, tmp_path: Path
) -> None:
    with (
        GatewayProcess(slow_worker.url, tmp_path / "log", HERD_GATEWAY_IDLE_S="5") as gateway,
        Client(slow_worker.url) as client,
        ExitStack() as stack,
    ):
        job_id = client.submit(**LONG)
        for one in bad_clients(gateway.url, job_id, 100):
            stack.callback(one.close)
        slow = follow(gateway.url, job_id)
        assert slow.read(1)  # a byte now and then, no more
        before = peak_bytes(gateway.process.pid)
        assert read(gateway.url, job_id) == list(client.stream(job_id))
        assert peak_bytes(gateway.process.pid) - before < 100 * MB


def test_half_requests_hold_up_nobody(tmp_path: Path) -> None:
    with (
        EmbeddedRedis() as server,
        StandIn(server.url),
        GatewayProcess(server.url, tmp_path / "log", HERD_GATEWAY_IDLE_S="3") as gateway,
    ):
        halves = [raw(gateway.url) for _ in range(500)]
        for number, one in enumerate(halves):
            one.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: local"[: 1 + number % 36])
        status, _ = post(gateway.url, "/v1/completions", b'{"model": "tales", "prompt": "x"}')
        assert status == 200
        for one in halves:
            with suppress(ConnectionError):
                assert one.recv(99)[:1] in (b"", b"H")
            one.close()


def post(url: str, path: str, body: bytes) -> tuple[int, bytes]:
    connection = connect(url)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


GOOD = (
    b'{"model": "tales", "prompt": "the secret prompt", "max_tokens": 4, "n": 2, "temperature": 0.5,'
    b' "stop": ["a", "b"], "logit_bias": {"5": 1.5}, "stream": true, '
    b'"stream_options": {"include_usage": true}}'
)


ODD = (b"null", b"1e999", b"[", b'"\\ud800"', b"-1", b"{}", b"9" * 400)


def mutated(chance: random.Random) -> bytes:
    """A good body with some bytes changed, cut out or doubled."""
    body = bytearray(GOOD)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(body))
        match chance.randrange(4):
            case 0:
                body[place] = chance.randrange(256)
            case 1:
                del body[place : place + chance.randint(1, 20)]
            case 2:
                body[place:place] = body[place : place + chance.randint(1, 20)]
            case 3:
                body[place:place] = chance.choice(
                    [b"null", b"1e999", b"[", b'"\\ud800"', b"-1", b"{}", b"9" * 400]
                )
    return bytes(body)


def test_garbage_gets_an_error_and_nothing_else(tmp_path: Path) -> None:
    chance = random.Random(7)
    with (
        EmbeddedRedis() as server,
        StandIn(server.url),
        GatewayProcess(server.url, tmp_path / "log") as gateway,
    ):
        connection = connect(gateway.url)
        for number in range(2000):
            path = ("/v1/completions", "/v1/chat/completions", "/v1/jobs")[number % 3]
            connection.request("POST", path, mutated(chance))
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status in (200, 202, 400, 404, 422), (answer.status, text)
            if answer.status >= 400:
                assert b"secret" not in text
        assert not re.search("secret|Traceback|ERROR", gateway.log)


def test_bodies_of_a_hundred_megabytes_are_not_held(tmp_path: Path) -> None:
    with (
        EmbeddedRedis() as server,
        StandIn(server.url),
        GatewayProcess(server.url, tmp_path / "log") as gateway,
    ):
        post(gateway.url, "/v1/jobs", GOOD)
        before = peak_bytes(gateway.process.pid)

        def send(chunked: bool) -> None:
            with raw(gateway.url) as client, suppress(ConnectionError, TimeoutError):
                how = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 104857600"
                client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + how + b"\r\n\r\n")
                part = b"x" * MB
                for _ in range(100):
                    client.sendall(b"100000\r\n" + part + b"\r\n" if chunked else part)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(send, [True, False] * 8))
        assert peak_bytes(gateway.process.pid) - before < 150 * MB
        assert post(gateway.url, "/v1/completions", b'{"model": "tales", "prompt": "x"}')[0] == 200
