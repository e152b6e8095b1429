"""What a gateway goes through: deaths, a Redis that is away, and clients of every bad kind."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from llama_herd.tasks.protocol.events import End, Event, parse_event
from tests.chaos.harness.patience import wait_until
from tests.cli.gateway_process import GatewayProcess
from tests.local.processes import WorkerProcess, hold, peak_bytes, release
from tests.tasks.gateway.garbage import GOOD, send_garbage
from tests.tasks.gateway.gateway_thread import events_of
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.fault, pytest.mark.timeout(180)]

#: Some seconds of a tiny model that never stops by itself.
LONG: dict[str, Any] = {"prompt": "the secret prompt", "sampling": {"max_tokens": 3000, "seed": 5}}
#: Tokens at which jobs stand still, so that none ends before the fault.
FAR = 1500
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
        options: dict[str, Any] = {"model_name": "tales", "slots": 4, "kv_cache_tokens": 16384}
        with WorkerProcess(server.url, path, "w", tmp_path / "worker.log", held_by=tmp_path, **options):
            yield server


def test_a_stream_goes_on_at_another_gateway(slow_worker: EmbeddedRedis, tmp_path: Path) -> None:
    with GatewayProcess(slow_worker.url, tmp_path / "one.log") as one, Client(slow_worker.url) as client:
        hold(tmp_path, FAR)
        job_id = client.submit(**LONG)
        seen: list[Event] = []
        for event in numbered(follow(one.url, job_id)):
            seen.append(event)
            if len(seen) == 10:
                one.kill()
        assert not isinstance(seen[-1], End)
        release(tmp_path)
        with GatewayProcess(slow_worker.url, tmp_path / "two.log") as two:
            seen += numbered(follow(two.url, job_id, seen[-1].seq))
        assert seen == list(client.stream(job_id))


def test_all_streams_of_a_killed_gateway_go_on_at_one_that_is_up(
    slow_worker: EmbeddedRedis, tmp_path: Path
) -> None:
    one = GatewayProcess(slow_worker.url, tmp_path / "one.log")
    two = GatewayProcess(slow_worker.url, tmp_path / "two.log")
    have_begun, were_cut_off = threading.Barrier(9), list[bool]()
    hold(tmp_path, FAR)
    with one, two, Client(slow_worker.url) as client, ThreadPoolExecutor(8) as pool:
        job_ids = [client.submit(**LONG) for _ in range(4)]

        def read_on(job_id: str) -> list[Event]:
            events = numbered(follow(one.url, job_id))
            seen = [next(events)]
            have_begun.wait(60)
            seen += events
            were_cut_off.append(not any(isinstance(event, End) for event in seen))
            return seen + list(numbered(follow(two.url, job_id, len(seen))))

        readers = [(job_id, pool.submit(read_on, job_id)) for job_id in job_ids * 2]
        have_begun.wait(60)
        one.kill()
        wait_until(lambda: len(were_cut_off) == len(readers), "all are cut off")
        release(tmp_path)
        for job_id, reader in readers:
            assert reader.result(120) == list(client.stream(job_id))
        assert all(were_cut_off)


def test_streams_outlive_a_redis_that_is_away(slow_worker: EmbeddedRedis, tmp_path: Path) -> None:
    with GatewayProcess(slow_worker.url, tmp_path / "log") as gateway, Client(slow_worker.url) as client:
        job_ids = [client.submit(**LONG) for _ in range(4)]
        have_begun = threading.Barrier(5)

        def read_from_the_beginning(job_id: str) -> list[Event]:
            events = numbered(follow(gateway.url, job_id))
            seen = [next(events)]
            have_begun.wait(60)
            return seen + list(events)

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read_from_the_beginning, job_id) for job_id in job_ids]
            have_begun.wait(60)
            slow_worker.stop()
            threading.Event().wait(5)
            slow_worker.start()
            for job_id, reader in zip(job_ids, readers, strict=True):
                assert reader.result(120) == list(client.stream(job_id))
        assert "secret" not in gateway.log


def chunks(url: str, body: dict[str, Any]) -> list[str]:
    """All data of a stream by OpenAI's endpoint."""
    connection = connect(url)
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
    return [one.data for one in events_of(connection.getresponse())]


def test_a_killed_worker_costs_no_reader_a_token(slow_worker: EmbeddedRedis, tmp_path: Path) -> None:
    """By either endpoint: each stream is whole, and ends once."""
    path = tmp_path / "endless.gguf"
    options: dict[str, Any] = {"model_name": "other", "slots": 4, "kv_cache_tokens": 8192}
    one = WorkerProcess(slow_worker.url, path, "one", tmp_path / "one", held_by=tmp_path, **options)
    asked = {"model": "other", "prompt": "the secret prompt", "max_tokens": 2000, "seed": 5}
    with (
        one,
        GatewayProcess(slow_worker.url, tmp_path / "log") as gateway,
        Client(slow_worker.url, model="other") as client,
        ThreadPoolExecutor(2) as pool,
    ):
        hold(tmp_path, FAR)
        job_id = client.submit(**LONG)
        readers = pool.submit(read, gateway.url, job_id), pool.submit(chunks, gateway.url, asked)
        wait_until(lambda: len(client.jobs(state="running")) == 2, "both run")
        running = [job.job_id for job in client.jobs()]
        wait_until(partial(have_all_said, client, running, 50), "both have begun to speak")
        one.kill()
        release(tmp_path)
        with WorkerProcess(slow_worker.url, path, "two", tmp_path / "two", **options):
            assert readers[0].result(120) == list(client.stream(job_id))
            *text, done = readers[1].result(120)
        assert done == "[DONE]"
        (other,) = {*running} - {job_id}
        said = "".join(json.loads(one)["choices"][0]["text"] for one in text)
        assert said == client.result(other).text
        assert client.history(other).record.attempts == 2
        assert "secret" not in gateway.log


def response_events(url: str, path: str, body: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a stream of the Responses API, up to wherever it ends."""
    connection = connect(url)
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
    with suppress(HTTPException, OSError):
        yield from (json.loads(one.data) for one in events_of(connection.getresponse()))


def test_a_response_goes_on_at_another_gateway_though_its_worker_died_too(
    slow_worker: EmbeddedRedis, tmp_path: Path
) -> None:
    """In the background, by the numbers of its events: who reads all of it later reads the same."""
    path = write_tiny_gguf(
        tmp_path / "talker.gguf",
        eos=False,
        context_length=8192,
        chat_template="{% for one in messages %}{{ one.content }}{% endfor %}",
    )
    options: dict[str, Any] = {"model_name": "other", "slots": 4, "kv_cache_tokens": 8192}
    asked = {
        "model": "other",
        "input": "secret",
        "max_output_tokens": 2000,
        "background": True,
        "stream": True,
    }
    seen: list[dict[str, Any]] = []
    with GatewayProcess(slow_worker.url, tmp_path / "one.log") as gateway:
        hold(tmp_path, FAR)
        one = WorkerProcess(slow_worker.url, path, "one", tmp_path / "one", held_by=tmp_path, **options)
        with one:
            for event in response_events(gateway.url, "/v1/responses", asked):
                seen.append(event)
                if len(seen) == 10:
                    gateway.kill()
            one.kill()
    assert "response" not in seen[-1]
    release(tmp_path)
    place = f"/v1/responses/{seen[0]['response']['id']}"
    with (
        GatewayProcess(slow_worker.url, tmp_path / "two.log") as other,
        WorkerProcess(slow_worker.url, path, "two", tmp_path / "two", **options),
    ):
        rest = f"{place}?stream=true&starting_after={seen[-1]['sequence_number']}"
        seen += response_events(other.url, rest)
        whole = list(response_events(other.url, f"{place}?stream=true"))
    assert [one["sequence_number"] for one in seen] == list(range(len(whole)))
    assert seen[2:-1] == whole[2:-1]
    assert seen[-1] == whole[-1]
    assert whole[-1]["type"] == "response.incomplete"
    said = "".join(one["delta"] for one in whole if one["type"] == "response.output_text.delta")
    assert said == whole[-1]["response"]["output"][0]["content"][0]["text"] != ""


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
        is_over = threading.Event()
        slow = threading.Thread(target=read_slowly, args=(raw(gateway.url), job_id, is_over), daemon=True)
        slow.start()
        before = peak_bytes(gateway.process.pid)
        assert read(gateway.url, job_id) == list(client.stream(job_id))
        assert peak_bytes(gateway.process.pid) - before < 100 * MB
        is_over.set()
        slow.join()


def read_slowly(client: socket.socket, job_id: str, is_over: threading.Event) -> None:
    """A byte a second, until the end of the test or of the connection."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    with client, suppress(ConnectionError):
        while client.recv(1) and not is_over.wait(1):
            pass


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


def test_garbage_gets_an_error_and_nothing_else(tmp_path: Path) -> None:
    with (
        EmbeddedRedis() as server,
        StandIn(server.url),
        GatewayProcess(server.url, tmp_path / "log") as gateway,
    ):
        send_garbage(connect(gateway.url), 2000)
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
