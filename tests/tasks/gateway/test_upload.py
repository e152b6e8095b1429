"""An upload: which forms are read, and what bounds it."""

import errno
import json
import random
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.gateway import file_upload
from llama_herd.tasks.ledger.stored_files import AGAIN_MS, StoredFiles
from tests.batch_api import BatchApi, form, rows
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.gateway.test_file_routes import files_in

pytestmark = pytest.mark.redis


@pytest.fixture
def narrow(redis: Redis, redis_url: str) -> Iterator[GatewayThread]:
    """A gateway with small limits."""
    limits: dict[str, Any] = {
        "max_tenant_batches": 2,
        "max_tenant_files": 2,
        "max_tenant_bytes": 3500,
        "max_tenant_rows": 10,
        "file_bytes": 3000,
    }
    with GatewayThread(redis_url, batch_rows=8, **limits) as gateway:
        yield gateway


WRONG_FORMS = {
    "no purpose": ({}, "purpose"),
    "another purpose": ({"purpose": "fine-tune"}, "purpose"),
    "unknown field": ({"purpose": "batch", "colour": "blue"}, "colour"),
    "too soon": (
        {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9"},
        "seconds",
    ),
    "no number": (
        {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"},
        "seconds",
    ),
    "long field": ({"purpose": "b" * 5000}, "purpose"),
}


@pytest.mark.parametrize("case", WRONG_FORMS)
def test_a_wrong_form_leaves_nothing(api: BatchApi, gateway: GatewayThread, case: str) -> None:
    before = files_in(gateway)
    fields, param = WRONG_FORMS[case]
    body, kind = form(b"{}\n", fields)
    answer = api.ask("POST", "/v1/files", body, {"Content-Type": kind})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert files_in(gateway) == before


def test_what_is_no_form_is_refused(api: BatchApi, gateway: GatewayThread) -> None:
    before = files_in(gateway)
    body, kind = form(b"{}\n", {"purpose": "batch"})
    cut = body[:-20]
    without = body.replace(b'name="file"', b'name="purpose2"')
    for raw, of in ((body, "text/plain"), (cut, kind), (b"", kind), (b"x", kind), (without, kind)):
        answer = api.ask("POST", "/v1/files", raw, {"Content-Type": of})
        assert answer.status == 400, (raw, answer.raw)
    assert files_in(gateway) == before


def odd_form(chance: random.Random) -> tuple[bytes, str]:
    """A form that is nearly right, and its content type: names, values and the boundary may be anything."""

    def text() -> str:
        alphabet = chance.choice(
            ("a", "0123456789", "9", '"', ";=", "\r\n", "%", "\u0663", "\xe9-'*", " :\t\0")
        )
        count = chance.choice((0, 1, 2, 8, 9, 10, 70, 71, 255, 256, 257, 1024, 1025))
        return "".join(chance.choices(alphabet, k=count)) + chance.choice(("", "", "x", "\u00fc"))

    def one_of(*good: str) -> str:
        return text() if chance.random() < 0.2 else chance.choice(good)

    boundary = one_of("b", "b" * 70)
    names = ("purpose", "expires_after[anchor]", "expires_after[seconds]", "file")
    parts = []
    for name in chance.sample(names, chance.randint(2, 4)) + chance.choices(names, k=chance.randint(0, 1)):
        value = {"purpose": "batch", "expires_after[anchor]": "created_at"}.get(name, "3600")
        file = f'; filename="{one_of("a.jsonl")}"' if name == "file" else ""
        disposition = f'{one_of("form-data")}; name="{one_of(name)}"{file}'
        head = f"{one_of('Content-Disposition')}: {disposition}\r\n"
        parts.append(f"--{boundary}\r\n{head}\r\n{one_of(value)}\r\n")
    body = f"{''.join(parts)}--{boundary}--{one_of(chr(13) + chr(10))}".encode()
    quoted = one_of(boundary, f'"{boundary}"')
    kind = f"{one_of('multipart/form-data')}; {one_of('boundary')}={quoted}"
    return body, re.sub(r"[\r\n\0]", "", kind)


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "num"),
    [(0, 150), pytest.param(1000, 20_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_a_form_that_is_nearly_right_is_stored_or_told_why_not(
    gateway: GatewayThread, first: int, num: int
) -> None:
    statuses = []
    with closing(gateway.connect()) as connection:
        for seed in range(first, first + num):
            body, kind = odd_form(random.Random(seed))
            connection.request("POST", "/v1/files", body, {"Content-Type": kind.encode()})
            answer = connection.getresponse()
            told = json.loads(answer.read())
            assert answer.status == 200 or (answer.status == 400 and told["error"]["message"]), (seed, told)
            statuses.append(answer.status)
    assert set(statuses) == {200, 400}


def test_what_follows_a_form_is_bounded(api: BatchApi, gateway: GatewayThread) -> None:
    before = files_in(gateway)
    body, kind = form(b"{}\n", {"purpose": "batch"})
    for raw in (body + bytes(1 << 20), b"\r\n" * (1 << 19) + body):
        answer = api.ask("POST", "/v1/files", raw, {"Content-Type": kind})
        assert (answer.status, answer.error["code"]) == (400, "invalid_form")
    assert files_in(gateway) == before


def test_limits_are_told_with_both_numbers(narrow: GatewayThread, stand_in: StandIn, redis: Redis) -> None:
    api = BatchApi(lambda: narrow.url)
    too_long = api.upload(b"x" * 3001)
    assert (too_long.status, too_long.error["code"]) == (413, "file_too_large")
    assert "3,000" in too_long.error["message"]
    (error,) = api.end_of(api.begin(rows(9)))["errors"]["data"]
    assert (error["code"], error["line"]) == ("too_many_rows", 9)
    full = api.upload(b"x" * 2900)
    assert (full.status, full.error["code"]) == (429, "quota_exceeded")
    assert "3,500" in full.error["message"]
    assert "bytes" in full.error["message"]
    assert api.upload(b"x").status == 200
    third = api.upload(b"x")
    assert (third.status, third.error["message"].split(",")[0]) == (429, "this tenant has 2 files")
    file_id = api.ask("GET", "/v1/files").json["data"][0]["id"]
    another = api.end_of(api.create(file_id).json["id"])
    fourth = api.create(file_id)
    assert (fourth.status, fourth.error["message"].split(",")[0]) == (429, "this tenant has 2 batches")
    redis.delete(f"herd:default:{{{another['id']}}}:batch")  # as it goes a month after its end
    assert api.create(file_id).status == 200
    assert len(files_in(narrow)) == 2


def test_uploads_side_by_side_stay_within_the_quota(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have begun before the first one ends, in two gateways; what was refused counts no more."""
    monkeypatch.setattr(file_upload, "PIECE_BYTES", 1000)
    limits: dict[str, Any] = {"files": str(tmp_path), "max_tenant_bytes": 10_000}
    with GatewayThread(redis_url, **limits) as one, GatewayThread(redis_url, **limits) as other:
        apis = [BatchApi(lambda: one.url), BatchApi(lambda: other.url)] * 4
        with ThreadPoolExecutor(len(apis)) as pool:
            answers = [*pool.map(lambda api: api.upload(b"x" * 4000), apis)]
        kept = [answer for answer in answers if answer.status == 200]
        assert {answer.status for answer in answers} <= {200, 429}
        assert len(kept) <= 2
        assert redis.hget("herd:default:quota", "bytes") == str(4000 * len(kept)).encode()
        kept_fields: Any = redis.hkeys("herd:default:quota")
        assert not [name for name in kept_fields if name.startswith(b"upload:")]
        assert len(files_in(one)) == len(kept)
        for answer in kept:
            apis[0].ask("DELETE", f"/v1/files/{answer.json['id']}")
        assert apis[0].upload(b"x" * 10_000).status == 200


def test_an_upload_counts_before_its_last_byte(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_upload, "PIECE_BYTES", 1000)
    body, kind = form(b"x" * 8000, {"purpose": "batch"})
    may_end = Event()

    def slowly() -> Iterator[bytes]:
        yield body[:-60]
        may_end.wait(60)
        yield body[-60:]

    with (
        GatewayThread(redis_url, files=str(tmp_path), max_tenant_bytes=10_000) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        api = BatchApi(lambda: gateway.url)
        headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        slow = pool.submit(gateway.send, "POST", "/v1/files", slowly(), headers)
        wait_until(lambda: int(redis.hget("herd:default:quota", "bytes") or 0) >= 7000, "it counts")
        refused = api.upload(b"x" * 4000)
        assert (refused.status, refused.error["code"]) == (429, "quota_exceeded")
        assert api.upload(b"x" * 1000).status == 200
        may_end.set()
        assert slow.result().status == 200
        assert redis.hget("herd:default:quota", "bytes") == b"9000"


@pytest.mark.parametrize("is_reset", [False, True])
def test_an_upload_that_is_no_http_any_more_frees_its_bytes_at_once(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    """Also if the client is gone altogether by the time of the answer to that."""
    monkeypatch.setattr(file_upload, "PIECE_BYTES", 1000)
    body, kind = form(b"x" * 8000, {"purpose": "batch"})
    fields = ("Host: localhost", f"Content-Type: {kind}", "Transfer-Encoding: chunked")
    head = "\r\n".join(("POST /v1/files HTTP/1.1", *fields, "", "")).encode()
    if is_reset:
        error = OSError(errno.ENOTCONN, "as of a connection that was reset")
        transport = "asyncio.selector_events._SelectorSocketTransport"
        monkeypatch.setattr(f"{transport}.write_eof", Mock(side_effect=error))

    def num_bytes() -> int:
        return int(redis.hget("herd:default:quota", "bytes") or 0)

    with GatewayThread(redis_url, files=str(tmp_path), idle_s=3600) as gateway:
        place = urlsplit(gateway.url)
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as client:
            client.sendall(b"%s%x\r\n%s\r\n" % (head, 7000, body[:7000]))
            wait_until(num_bytes, "it counts")
            client.sendall(b"%x\r\n%s\r\nno length\r\n" % (20_000, b"x" * 20_000))  # it is read in turns
            assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
            wait_until(lambda: not num_bytes() and not gateway.num_requests, "its bytes are free")
            wait_until(lambda: not is_reset or not gateway.num_connections, "it is cut off")
    assert not redis.exists("herd:default:quota")


def test_an_upload_that_failed_is_noted_for_a_minute_and_not_for_a_day(
    redis: Any, gateway: GatewayThread, api: BatchApi
) -> None:
    """Else whoever sends wrong ones fills Redis."""
    assert api.upload(b"{}\n", purpose="vision").status == 400
    due = StoredFiles(storage=gateway.context.storage.id).files_due_key
    ((_, due_ms),) = redis.zrange(due, 0, -1, withscores=True)
    assert due_ms <= 1000 * (redis.time()[0] + 1) + AGAIN_MS


def test_rows_under_way_are_bounded(narrow: GatewayThread, stand_in: StandIn) -> None:
    api = BatchApi(lambda: narrow.url)
    stand_in.hold()
    first = api.begin(rows(8))
    wait_until(lambda: api.show(first)["status"] == "in_progress", "it runs")
    (error,) = api.end_of(api.begin(rows(3)))["errors"]["data"]
    assert error["code"] == "too_many_rows_under_way"
    assert "10" in error["message"]
    stand_in.go_on()
    api.end_of(first)


def test_a_storage_that_cannot_be_written_is_told(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")  # where no folder can be made
    with GatewayThread(redis_url, files=str(tmp_path / "link")) as gateway:
        api = BatchApi(lambda: gateway.url)
        answer = api.upload(b"{}\n")
        assert (answer.status, answer.error["code"]) == (503, "files_unavailable")
        assert str(tmp_path) not in answer.error["message"]
