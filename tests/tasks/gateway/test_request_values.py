"""Odd values in each header, query and part of a path that the code reads: an error that says so, no bug."""

import json
import random
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import h11
import pytest
import uvicorn.protocols.http.h11_impl as uvicorn_http
from starlette.datastructures import Headers, QueryParams

from benchmarks.stand_in import StandIn
from llama_herd.tasks.gateway.app import ROUTES
from llama_herd.tasks.gateway.routes import OPERATIONS
from tests.batch_api import BatchApi, form, lines, rows
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd

pytestmark = pytest.mark.redis

#: Errors of a herd that is well: the model, or what is asked for, may be served later, or a disk is full.
DOCUMENTED = (503, 507)
ODD = (
    *(
        b"",
        b" ",
        b"x" * 20_000,
        b"9" * 400,
        b"-1",
        b"1e999",
        b"0",
        b"null",
        b"None",
        b"*",
        b",",
        b";=",
        b'"',
        b"'",
    ),
    *("\u00fc".encode(), b"\xff\xfe", "\u0663\U0001f999".encode(), b"a\tb", b"a\x01b", b"\x7f", b"a\x00b"),
    *(
        b"%",
        b"%00",
        b"%zz",
        b"%ff%fe",
        b"%0d%0aX: y",
        b"../../x",
        b"http://[",
        b"bytes=0-",
        b"gzip",
        b"chunked",
    ),
)

ODD_PART = "ODD"
ORIGIN = "https://app.example"


class Asked(NamedTuple):
    """A request: its good parts, and where it is odd."""

    method: str
    path: str
    odd_path: str  # the same with ODD_PART in place of its parameter
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def raw(self) -> bytes:
        target = self.path.encode() + (b"?" + self.query if self.query else b"")
        head = (b"%s %s HTTP/1.1" % (self.method.encode(), target), *map(b": ".join, self.headers))
        return b"\r\n".join((*head, b"", self.body))


@pytest.fixture
def gateway(redis_url: str) -> Iterator[GatewayThread]:
    """One that pages of another origin may call, which has headers of its own."""
    with GatewayThread(redis_url, heartbeat_s=0.2, origins=ORIGIN) as gateway:
        yield gateway


@pytest.fixture
def asked(gateway: GatewayThread, herd: Herd, stand_in: StandIn) -> list[Asked]:
    """What each route takes, with a job, a file and a batch that are there."""
    api = BatchApi(lambda: gateway.url)
    batch_id = api.begin(rows(1))
    file_id = api.end_of(batch_id)["input_file_id"]
    jobs = [api.ask("POST", "/v1/jobs", {"model": "tales", "prompt": "x"}).json["id"] for _ in range(2)]
    ids = {
        "/v1/files": file_id,
        "/v1/batches": batch_id,
        "/v1/jobs": jobs[0],
        "/v1/responses": f"resp_{jobs[1]}",
    }
    return [
        request(method, route.path, ids.get(route.path[: route.path.find("/{")], ""), file_id)
        for route in ROUTES
        for method in sorted(route.methods or ())
    ]


def request(method: str, template: str, own_id: str, file_id: str) -> Asked:
    path = template.format(id=own_id, model="tales", name="style.css")
    part = next(iter(re.findall(r"\{\w+\}", template)), "")
    words: dict[str, Any] = {"model": "tales", "prompt": "x"}
    body, kind = json.dumps(_body(path, words, file_id)).encode(), "application/json"
    if path == "/v1/files":
        body, kind = form(lines(rows(1)), {"purpose": "batch"})
    body = body if method == "POST" else b""
    headers = {
        "Host": "localhost",
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    odd = template.replace(part, ODD_PART) if part else path
    return Asked(method, path, odd, b"", tuple((n.encode(), v.encode()) for n, v in headers.items()), body)


def _body(path: str, words: Mapping[str, Any], file_id: str) -> Mapping[str, Any]:
    bodies: dict[str, Mapping[str, Any]] = {
        "/v1/chat/completions": {"model": "tales", "messages": [{"role": "user", "content": "x"}]},
        "/v1/responses": {"model": "tales", "input": "x"},
        "/v1/batches": {
            "input_file_id": file_id,
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        },
        "/detokenize": {"model": "tales", "tokens": [1]},
    }
    return bodies.get(path, words)


def answer(gateway: GatewayThread, raw: bytes, *, halves: bool) -> tuple[int, bytes]:
    """The status and the body of the answer. `halves`: the body may be other than is said."""
    place = urlsplit(gateway.url)
    with closing(socket.create_connection((place.hostname, place.port), timeout=20)) as client:
        client.sendall(raw)
        if halves:
            client.shutdown(socket.SHUT_WR)
        seen = b"".join(iter(lambda: client.recv(65_536), b""))
    head = b"HTTP/1.1 100"
    while head.startswith(b"HTTP/1.1 1"):
        head, _, seen = seen.partition(b"\r\n\r\n")
    return int(head.split()[1]), seen


class Reads:
    """The names of headers and queries that the code asks for, while it is patched in."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.headers, self.queries = set[str](), set[str]()
        for kind, names in ((Headers, self.headers), (QueryParams, self.queries)):
            for method in ("__getitem__", "__contains__", "getlist"):
                patch.setattr(kind, method, self._noting(getattr(kind, method), names))

    @staticmethod
    def _noting(method: Any, names: set[str]) -> Any:
        def note(self: object, name: str) -> Any:
            names.add(name.lower())
            return method(self, name)

        return note


def names_in_servers() -> set[str]:
    """What h11 and uvicorn compare names of headers with, found in their own texts."""
    texts = [Path(uvicorn_http.__file__), *Path(h11.__file__).parent.glob("*.py")]
    found = {name.lower() for text in texts for name in re.findall(r'b"([A-Za-z-]{4,})"', text.read_text())}
    return found - {"http", "chunked"}


def odd_requests(good: list[Asked], headers: set[str], queries: set[str]) -> Iterator[Asked]:
    """Each request with each odd value in each place, alone and twice."""
    for one in good:
        for value in ODD:
            if one.odd_path != one.path:
                yield one._replace(path=one.odd_path.replace(ODD_PART, quoted(value)))
            for name in sorted(headers):
                given = (name.encode(), value)
                others = tuple(pair for pair in one.headers if pair[0].lower() != name.encode())
                yield one._replace(headers=(*others, given))
                yield one._replace(headers=(*one.headers, given, given))
            for name in sorted(queries):
                pair = name.encode() + b"=" + value
                for query in (pair, b"&".join((pair, pair)), name.encode() + b"=" + quoted(value).encode()):
                    yield one._replace(query=query)


def quoted(value: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in value[:500])


@pytest.mark.parametrize(
    "share", [0.003, pytest.param(0.1, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]
)
def test_an_odd_value_gets_an_answer_or_an_error_of_the_same_shape(
    gateway: GatewayThread, asked: list[Asked], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    reads, servers, chance, tried = Reads(monkeypatch), names_in_servers(), random.Random(share), set[str]()
    page = {b"Origin": ORIGIN.encode(), b"Access-Control-Request-Method": b"POST"}
    asked += [one._replace(method="OPTIONS", headers=(*one.headers, *page.items())) for one in asked[::5]]
    for one in asked:
        if not one.path.endswith("/purge") and one.method != "DELETE":
            assert answer(gateway, one.raw, halves=False)[0] < 500
    described = {name.lower() for one in OPERATIONS for name, _ in (*one.headers, *one.queries)}
    assert described <= reads.headers | reads.queries
    while names := (reads.headers | servers) - tried:  # an odd value may lead to code that reads others
        tried |= names
        for one in odd_requests(asked, names, reads.queries):
            if chance.random() < share:
                check(gateway, one)
    assert {"authorization", "host", "origin", "content-type", "access-control-request-method"} <= tried


def check(gateway: GatewayThread, one: Asked) -> None:
    """Send an odd request, and look at its answer."""
    status, body = answer(gateway, one.raw, halves=True)
    assert status < 500 or status in DOCUMENTED, (one, body)
    if status >= 400 and one.method != "HEAD":
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}, (one, body)
        assert error["message"], one
