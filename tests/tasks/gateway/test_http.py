"""HTTP itself, on raw sockets: each route with each method, from clients that are rare and right."""

import json
import socket
from collections.abc import Iterable
from contextlib import closing
from http import HTTPMethod
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from llama_herd.tasks.gateway.app import ROUTES
from llama_herd.tasks.gateway.settings import GatewaySettings
from tests.reply import Reply
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd, end, started

pytestmark = pytest.mark.redis

#: CONNECT has no path.
METHODS = [method.value for method in HTTPMethod if method is not HTTPMethod.CONNECT]
#: What a route is asked for that would wait for a worker: here is none.
QUERIES = {"/tokenizer_info": "?model=of/a-hub"}


class Asked(NamedTuple):
    method: str
    path: str


def paths() -> list[str]:
    """A path for each route; those with an id name a job that is over."""
    named = {"id": "over", "model": "tales", "name": "style.css"}
    return sorted({route.path.format(**named) + QUERIES.get(route.path, "") for route in ROUTES})


def routed() -> list[Asked]:
    return [Asked(method, path) for path in paths() for method in METHODS]


def taken() -> list[Asked]:
    """What routes take, but for what would forget the job."""
    return [one for one in routed() if one.method in methods_of(one.path) and not one.path.endswith("/purge")]


def methods_of(path: str) -> set[str]:
    """What the routes of a path take, found by the routes themselves."""
    return {
        method
        for route in ROUTES
        if route.path_regex.match(path.partition("?")[0])
        for method in route.methods or ()
    }


@pytest.fixture
def over(herd: Herd) -> Herd:
    """A herd with a job that is over, so that its events end, too."""
    herd.submit("over")
    herd.claimed("over")
    herd.emit("one", started("over"))
    herd.emit("one", end("over", 2, 0))
    return herd


def message(asked: Asked, target: str = "", host: str = "localhost", body: bytes = b"{}") -> bytes:
    lines = (
        f"{asked.method} {target or asked.path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def replies(raw: bytes, methods: Iterable[str]) -> list[Reply]:
    """The answers in what a server has sent; to HEAD they have no body. Chunks are not taken apart."""
    found = []
    for method in methods:
        head, _, raw = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = 0 if method == "HEAD" else int(headers.get("content-length", len(raw)))
        found.append(Reply(int(first.split()[1]), headers, raw[:length]))
        raw = raw[length:]
    assert not raw
    return found


def exchange(
    gateway: GatewayThread, sent: bytes, methods: Iterable[str], *, halves: bool = False
) -> list[Reply]:
    """Send bytes, and read up to the end of the connection; `halves`: say that no more will be sent."""
    place = urlsplit(gateway.url)
    with closing(socket.create_connection((place.hostname, place.port), timeout=20)) as client:
        client.sendall(sent)
        if halves:
            client.shutdown(socket.SHUT_WR)
        parts = iter(lambda: client.recv(65_536), b"")
        return replies(b"".join(parts), methods)


def closing_message(asked: Asked, target: str = "", host: str = "localhost") -> bytes:
    return message(asked, target, host).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


def ask(gateway: GatewayThread, asked: Asked, **options: str) -> Reply:
    (found,) = exchange(gateway, closing_message(asked, **options), [asked.method])
    return found


@pytest.mark.long
def test_what_a_route_does_not_take_is_told_with_all_that_it_takes(
    gateway: GatewayThread, over: Herd
) -> None:
    for asked in routed():
        found = ask(gateway, asked)
        if asked.method in methods_of(asked.path):
            assert found.status != 405, asked
            continue
        assert found.status == 405, asked
        assert set(found.headers["allow"].split(", ")) == methods_of(asked.path), asked
        if asked.method != "HEAD":
            assert found.error["code"] == "method_not_allowed"


def test_head_has_the_head_of_get_and_no_body(gateway: GatewayThread, over: Herd) -> None:
    for path in paths():
        if "GET" in methods_of(path):
            head, whole = (ask(gateway, Asked(method, path)) for method in ("HEAD", "GET"))
            assert (head.status, head.headers["content-type"]) == (
                whole.status,
                whole.headers["content-type"],
            ), path
            assert head.raw == b""


@pytest.mark.long
def test_a_client_that_sends_no_more_is_answered(gateway: GatewayThread, over: Herd) -> None:
    for asked in taken():
        (found,) = exchange(gateway, message(asked), [asked.method], halves=True)
        assert found.status == ask(gateway, asked).status, asked


def test_all_that_was_asked_before_is_answered(gateway: GatewayThread) -> None:
    asked = [Asked("GET", path) for path in ("/health/live", "/page/style.css", "/openapi.json", "/none")]
    found = exchange(gateway, b"".join(map(message, asked)), ["GET"] * 4, halves=True)
    assert [one.status for one in found] == [200, 200, 200, 404]


def test_a_body_that_ends_early_is_told(gateway: GatewayThread, herd: Herd) -> None:
    for path in paths():
        if "POST" in methods_of(path):
            sent = message(Asked("POST", path), body=b"{}" * 50)[:-1]
            (found,) = exchange(gateway, sent, ["POST"], halves=True)
            reads = not path.endswith(("/cancel", "/purge"))
            assert found.status in ((400,) if reads else (400, 404)), path


@pytest.mark.parametrize(
    "sent", [b"X: " + b"x" * 40_000, b"Transfer-Encoding: gzip", b"Content-Length: x", b"\0"]
)
def test_a_head_request_that_is_refused_has_no_body_and_holds_up_no_end(redis_url: str, sent: bytes) -> None:
    with GatewayThread(redis_url) as gateway:
        raw = b"HEAD /health/live HTTP/1.1\r\nHost: localhost\r\n" + sent + b"\r\n\r\n"
        (found,) = exchange(gateway, raw, ["HEAD" if b"X: " in sent else "GET"], halves=True)
        assert 400 <= found.status < 500


def answered_one_way(gateway: GatewayThread, herd: Herd, sent: bytes) -> bytes:
    """What a client is sent that sends no more than this: first the stream of job `a`, which then ends."""
    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    place = urlsplit(gateway.url)
    with closing(socket.create_connection((place.hostname, place.port), timeout=20)) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        seen = b""
        while b"event: started" not in seen:
            seen += client.recv(4096)
        herd.emit("one", end("a", 2, 0))
        while part := client.recv(4096):
            seen += part
    return seen


def test_a_stream_goes_on_to_a_client_that_sends_no_more(gateway: GatewayThread, herd: Herd) -> None:
    seen = answered_one_way(gateway, herd, message(Asked("GET", "/v1/jobs/a/events"), body=b""))
    assert b"event: end" in seen


def test_what_is_sent_beside_an_answer_under_way_does_not_end_it(redis_url: str, herd: Herd) -> None:
    herd.submit("a")
    herd.claimed("a")
    herd.emit("one", started("a"))
    asked = [Asked("GET", path) for path in ("/health/live", "/v1/jobs/a/events", "/health/live")]
    first, second, third = (message(one, body=b"") for one in asked)
    with GatewayThread(redis_url, idle_s=0.2, heartbeat_s=0.1) as gateway:
        place = urlsplit(gateway.url)
        with closing(socket.create_connection((place.hostname, place.port), timeout=20)) as client:
            client.sendall(first + second)
            seen = b""
            while b"event: started" not in seen:
                seen += client.recv(4096)
            client.sendall(third)
            while seen.count(b"\n:") < 8:  # heartbeats, for longer than a head may take
                seen += client.recv(4096)
            herd.emit("one", end("a", 2, 0))
            while seen.count(b'"live"') < 2:
                seen += client.recv(4096)
    assert b"event: end" in seen


def test_what_was_asked_behind_a_stream_is_answered_to_a_client_that_sends_no_more(
    gateway: GatewayThread, herd: Herd
) -> None:
    asked = [Asked("GET", path) for path in ("/v1/jobs/a/events", "/health/live", "/health/live")]
    sent = b"".join(message(one, body=b"") for one in asked) + b"GET /half"
    seen = answered_one_way(gateway, herd, sent)
    assert seen.count(b'"live"') == 2


@pytest.mark.long
def test_a_whole_url_is_its_path(gateway: GatewayThread, over: Herd) -> None:
    place = urlsplit(gateway.url).netloc
    for asked in taken():
        found = ask(gateway, asked, target=f"HTTP://{place}{asked.path}", host="evil.example")
        assert found.status == ask(gateway, asked).status, asked
    assert ask(gateway, Asked("GET", ""), target=gateway.url).status == 200
    assert (
        json.loads(ask(gateway, Asked("GET", ""), target=f"{gateway.url}/v1/models?x=/y").raw)["object"]
        == "list"
    )


@pytest.mark.parametrize(
    "url", ["http://evil.example/v1/models", "http://[/v1/models", "https://evil.example:8000/v1/models"]
)
def test_the_host_of_a_whole_url_is_the_one_that_counts(gateway: GatewayThread, over: Herd, url: str) -> None:
    """Whatever the header says: else a page's own name for this machine would pass."""
    assert ask(gateway, Asked("GET", ""), target=url).error["code"] == "foreign_host"


@pytest.mark.parametrize(
    "url", ["http:///v1/models", "http://", "http://me@localhost/v1/models", "https://me:x@localhost/"]
)
def test_a_url_without_a_plain_host_is_refused(gateway: GatewayThread, url: str) -> None:
    assert ask(gateway, Asked("GET", ""), target=url).status == 400


def test_a_connection_rests_longer_than_balancers_keep_it() -> None:
    """nginx and AWS keep 60 s: one that we close first may be the one that they send a request on."""
    assert GatewaySettings.model_fields["gateway_keep_alive_s"].default > 60


def test_a_connection_that_rests_is_closed_in_order(redis_url: str) -> None:
    with GatewayThread(redis_url, keep_alive_s=0.2, idle_s=20) as gateway:
        (found,) = exchange(gateway, message(Asked("GET", "/health/live"), body=b""), ["GET"])
        assert found.status == 200


def test_a_head_that_begins_after_a_rest_must_come_in_time(redis_url: str) -> None:
    sent = message(Asked("GET", "/health/live"), body=b"")
    with GatewayThread(redis_url, keep_alive_s=20, idle_s=0.2) as gateway:
        place = urlsplit(gateway.url)
        with closing(socket.create_connection((place.hostname, place.port), timeout=15)) as client:
            client.sendall(sent)
            seen = b""
            while b"live" not in seen.partition(b"\r\n\r\n")[2]:
                seen += client.recv(4096)
            client.sendall(sent[:20])
            while part := client.recv(4096):  # the rest of the answer; then it is cut off
                seen += part
