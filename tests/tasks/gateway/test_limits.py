"""What a client can take from a gateway by what it sends, or does not read."""

import json
import logging
import socket
from contextlib import ExitStack, closing, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks.gateway.request_log import AnswerCount
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from tests.chaos.harness.patience import wait_until
from tests.logged import listening
from tests.tasks.gateway.garbage import send_garbage
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.herd import Herd, started, token

pytestmark = [pytest.mark.redis, pytest.mark.long]


def made(redis: Any, name: str) -> str:
    return run_dialogue(redis, create_key(name, "default", KeyRole.PRODUCER))


def raw(gateway: GatewayThread) -> socket.socket:
    place = urlsplit(gateway.url)
    return socket.create_connection((place.hostname, place.port), timeout=20)


def test_a_body_that_is_too_long_is_not_read(redis_url: str, herd: Herd) -> None:
    with GatewayThread(redis_url, max_body_bytes=1024) as gateway, closing(raw(gateway)) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n")
        assert client.recv(99).startswith(b"HTTP/1.1 413 ")
        found = gateway.ask("POST", "/v1/completions", b'"' + b"x" * 2000)
        assert (found.status, found.error["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}, {"Origin": "http://x"}])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_who_sends_a_body_that_is_not_wanted_hears_why(
    gateway: GatewayThread, herd: Herd, headers: dict[str, str], is_chunked: bool
) -> None:
    """Python's client sends all of it before it reads: to it a connection that is closed is an error."""
    body = b"x" * 12_000_000
    parts = (body[start : start + 65_536] for start in range(0, len(body), 65_536))
    connection = gateway.connect()
    connection.request("POST", "/v1/jobs", parts if is_chunked else body, headers, encode_chunked=is_chunked)
    answer = connection.getresponse()
    assert answer.status == (403 if "Origin" in headers else 413)
    assert json.loads(answer.read())["error"]["message"]


@pytest.mark.program
def test_openai_s_client_sends_a_body_that_is_too_long_once(redis_url: str, herd: Herd) -> None:
    from openai import APIStatusError, OpenAI

    answers = AnswerCount()
    with (
        GatewayThread(redis_url, answers=answers) as gateway,
        OpenAI(base_url=f"{gateway.url}/v1", api_key=made(herd.redis, "one"), max_retries=2) as openai,
    ):
        with pytest.raises(APIStatusError) as refused:
            openai.completions.create(model="tales", prompt="x" * 12_000_000)
        assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")
        wait_until(lambda: not answers.num_under_way, "its answer is over")
    assert answers.num_ended == {("/v1/completions", 413): 1}


def test_who_goes_on_and_on_after_the_answer_is_cut_off(gateway: GatewayThread) -> None:
    with closing(raw(gateway)) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n")
        assert client.recv(99).startswith(b"HTTP/1.1 413 ")
        with pytest.raises(ConnectionError):
            client.sendall(b"x" * 200_000_000)


def test_a_body_of_chunks_is_counted(redis_url: str, herd: Herd) -> None:
    with GatewayThread(redis_url, max_body_bytes=1024) as gateway, closing(raw(gateway)) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"800\r\n" + b"x" * 2048 + b"\r\n")
        assert client.recv(99).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("sent", [b"", b"POST /v1/jobs HTTP/1.1\r\nHost: x"])
def test_a_head_that_does_not_come_ends_the_connection(redis_url: str, sent: bytes) -> None:
    with GatewayThread(redis_url, idle_s=0.2) as gateway, closing(raw(gateway)) as client:
        client.sendall(sent)
        assert client.recv(1) == b""


def test_a_body_that_does_not_come_is_given_up(redis_url: str, herd: Herd) -> None:
    with GatewayThread(redis_url, idle_s=0.2) as gateway, closing(raw(gateway)) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert client.recv(99).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_is_too_long_is_refused(redis_url: str) -> None:
    with GatewayThread(redis_url, max_header_bytes=1024) as gateway, closing(raw(gateway)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000)
        assert client.recv(99).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("num_headers", [1, 100])
def test_a_whole_head_that_is_too_long_is_refused(gateway: GatewayThread, num_headers: int) -> None:
    limit = GatewaySettings.model_fields["gateway_max_header_bytes"].default
    longer = {f"X-{n}": "x" * (limit // num_headers + 1) for n in range(num_headers)}
    shorter = {name: value[: len(value) * 2 // 3] for name, value in longer.items()}
    assert gateway.ask("GET", "/health/live", headers=shorter).status == 200
    found = gateway.ask("GET", "/health/live", headers=longer)
    assert (found.status, found.error["code"]) == (431, "bad_request")


def test_a_key_that_asks_too_often_waits(redis_url: str, herd: Herd) -> None:
    one, other = ({"Authorization": f"Bearer {made(herd.redis, name)}"} for name in ("one", "other"))
    with GatewayThread(redis_url, key_rate=0.5) as gateway:
        asked = [gateway.ask("GET", "/v1/models", headers=one) for _ in range(5)]
        assert [found.status for found in asked] == [200] * 5
        found = asked[0]
        while found.status == 200:  # until it has asked more often than time has passed
            found = gateway.ask("GET", "/v1/models", headers=one)
        assert (found.status, found.error["type"]) == (429, "rate_limit_error")
        assert 1 <= int(found.headers["retry-after"]) <= 4
        assert gateway.ask("GET", "/v1/models", headers=other).status == 200
        assert gateway.ask("GET", "/v1/models").status == 200  # who came in without a key


def test_a_long_body_counts_as_many_requests(redis_url: str, herd: Herd) -> None:
    shown = {"Authorization": f"Bearer {made(herd.redis, 'one')}"}
    with GatewayThread(redis_url, key_rate=1) as gateway:
        assert gateway.ask("POST", "/v1/jobs", {"prompt": "x" * 3_000_000}, shown).status == 422
        found = gateway.ask("GET", "/v1/models", headers=shown)
        assert (found.status, found.error["code"]) == (429, "rate_limit_exceeded")
        assert int(found.headers["retry-after"]) > 4


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
    ],
)
def test_what_is_no_http_gets_an_error_of_the_same_shape(
    gateway: GatewayThread, sent: bytes, status: int
) -> None:
    with closing(raw(gateway)) as client:
        client.sendall(sent)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["type"] in ("invalid_request_error", "server_error")


def read_all(client: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts: list[bytes] = []
    with suppress(ConnectionError):
        while part := client.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def test_no_http_in_the_body_of_a_stream_breaks_only_that_stream(gateway: GatewayThread, herd: Herd) -> None:
    herd.submit("a")
    herd.claimed("a")
    with listening() as logged, closing(raw(gateway)) as client:
        head = b"GET /v1/jobs/a/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head)
        assert client.recv(99).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"ZZ\r\n")
        assert b"HTTP/1.1" not in read_all(client)
    assert logged.errors == []


def test_a_body_of_two_lengths_is_the_connection_s_last(gateway: GatewayThread, herd: Herd) -> None:
    """What follows it might be another client's request, if a proxy has counted the other way."""
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with closing(raw(gateway)) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + both)
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_all(client).count(b"HTTP/1.1 ") == 1


def test_a_compressed_body_is_refused_by_name(gateway: GatewayThread, herd: Herd) -> None:
    found = gateway.ask("POST", "/v1/jobs", {"prompt": "x"}, {"Content-Encoding": "gzip"})
    assert (found.status, found.error["param"]) == (415, "Content-Encoding")
    plain = gateway.ask("POST", "/v1/jobs", {"prompt": "x"}, {"Content-Encoding": "identity"})
    assert plain.status == 202


def test_who_asks_on_and_on_and_reads_nothing_is_cut_off(redis_url: str) -> None:
    asked = b"GET /page/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100_000
    with GatewayThread(redis_url, idle_s=0.5) as gateway, closing(socket.socket()) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(20)
        place = urlsplit(gateway.url)
        stuck.connect((place.hostname, place.port))
        with pytest.raises(ConnectionError):
            stuck.sendall(asked)


def test_connections_beyond_the_limit_are_closed_at_once(redis_url: str) -> None:
    with GatewayThread(redis_url) as gateway, ExitStack() as stack:
        gateway.limit_connections(3)
        clients = [stack.enter_context(closing(raw(gateway))) for _ in range(4)]
        assert read_all(clients[3]) == b""
        clients[0].close()
        wait_until(lambda: gateway.num_connections < 3, "there is room again")
        assert gateway.ask("GET", "/health/live").status == 200


def test_garbage_gets_an_error_and_nothing_else(gateway: GatewayThread, stand_in: StandIn) -> None:
    """Two thousand are sent in tests/chaos."""
    # From INFO on, as `serve` does: below it redis-py logs what is published.
    with listening(logging.INFO) as logged, closing(gateway.connect()) as connection:
        send_garbage(connection, 200)
    assert logged.errors == []
    assert "secret" not in logged.text


def test_answers_under_way_are_counted(redis_url: str, herd: Herd) -> None:
    herd.submit("a")
    herd.claimed("a")
    with GatewayThread(redis_url, max_tenant_streams=1) as gateway:
        with gateway.send("GET", "/v1/jobs/a/events") as answer:
            assert answer.status == 200
            found = gateway.ask("GET", "/v1/jobs/a/events")
            assert (found.status, found.error["code"]) == (429, "too_many_streams")
        wait_until(lambda: not gateway.context.concurrency.num_taken, "the place is free")
    with GatewayThread(redis_url, max_streams=1) as gateway, gateway.send("GET", "/v1/jobs/a/events"):
        assert gateway.ask("GET", "/v1/jobs/a/events").status == 503


def test_who_reads_nothing_is_cut_off_and_holds_nobody_up(redis_url: str, herd: Herd) -> None:
    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    with GatewayThread(redis_url, idle_s=0.5) as gateway, closing(raw(gateway)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(b"GET /v1/jobs/a/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: gateway.context.concurrency.num_taken == 1, "its stream has begun")
        with gateway.send("GET", "/v1/jobs/a/events") as answer:
            events = events_of(answer)
            assert next(events).number == 1
            for seq in range(2, 300):  # more than sockets hold
                herd.redis.xadd(herd.ledger.events_key("a"), {"e": long_token(seq)}, f"{seq}-0")
                herd.redis.publish(herd.ledger.channel("a"), long_token(seq))
                assert next(events).number == seq
        wait_until(lambda: not gateway.context.concurrency.num_taken, "it was cut off")


def long_token(seq: int) -> str:
    return token("a", seq, seq - 2).event.replace(f"<{seq}.1>", "x" * 30_000)
