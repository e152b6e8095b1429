"""Files over HTTP: in by a form, out as they were, gone when they are deleted or their time is over."""

import errno
import json
import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event
from time import time
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.gateway import file_upload
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.ledger.stored_files import AGAIN_MS, StoredFiles
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from llama_herd.tasks.storage.folder import Folder
from tests.batch_api import BatchApi, form, lines, rows
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.cli.gateway_process import GatewayProcess
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


@pytest.fixture
def holder(redis: Redis, gateway: GatewayThread) -> Callable[..., BatchApi]:
    """A client with a new key."""

    def made(tenant: str = "default", role: KeyRole = KeyRole.PRODUCER) -> BatchApi:
        key = run_dialogue(redis, create_key(f"{tenant}-{role}", tenant, role))
        return BatchApi(lambda: gateway.url, key)

    return made


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


def files_in(gateway: GatewayThread) -> set[str]:
    """Names of all files in the storage, but for its id."""
    found = Path(gateway.context.settings.gateway_files).rglob("*")
    return {path.name for path in found if path.is_file()} - {"folder.id"}


def test_a_file_comes_out_as_it_went_in(api: BatchApi) -> None:
    content = bytes(range(256)) * 5000 + b"\r\n--x\r\n"
    file = api.upload(content, "a \u00e9.jsonl").json
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(content), "a \u00e9.jsonl", "batch")
    assert file["expires_at"] - file["created_at"] == 30 * 86_400
    assert api.ask("GET", f"/v1/files/{file['id']}").json == file
    assert api.ask("GET", f"/v1/files/{file['id']}/content").raw == content


def test_a_deleted_file_is_gone(api: BatchApi, gateway: GatewayThread) -> None:
    before = files_in(gateway)
    file_id = api.upload(b"{}\n").json["id"]
    assert files_in(gateway) - before == {file_id}
    deleted = api.ask("DELETE", f"/v1/files/{file_id}")
    assert deleted.json == {"id": file_id, "object": "file", "deleted": True}
    assert files_in(gateway) == before
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert api.ask(method, f"/v1/files/{file_id}{path}").status == 404


def test_an_expired_file_is_gone_before_anybody_deletes_it(
    api: BatchApi, gateway: GatewayThread, redis: Redis
) -> None:
    file_id = api.upload(b"{}\n").json["id"]
    redis.hset(f"herd:default:{{{file_id}}}:file", "expires_ms", 1)  # it is due a month from now
    assert api.ask("GET", f"/v1/files/{file_id}/content").status == 404
    assert api.create(file_id).status == 404
    assert file_id not in {file["id"] for file in api.ask("GET", "/v1/files").json["data"]}
    (due,) = redis.keys("herd:files@*")
    redis.zadd(due, {f"default/{file_id}": 1})
    gateway.context.feeder.look_soon()
    wait_until(lambda: file_id not in files_in(gateway), "its bytes are deleted")
    assert redis.hget("herd:default:quota", "files") == b"0"
    later_ms = 1000 * (time() + 60)
    wait_until(lambda: (redis.zscore(due, f"default/{file_id}") or 0) > later_ms, "it is put off")
    redis.zadd(due, {f"default/{file_id}": 1})
    gateway.context.feeder.look_soon()
    wait_until(lambda: redis.zscore(due, f"default/{file_id}") is None, "nothing is left to do")
    assert redis.zscore("herd:default:stored_files", file_id) is None


def test_bytes_without_a_record_are_deleted(api: BatchApi, gateway: GatewayThread, redis: Redis) -> None:
    """As an upload leaves them behind whose gateway has died."""
    file_id = api.upload(b"{}\n").json["id"]
    redis.delete(f"herd:default:{{{file_id}}}:file")
    (due,) = redis.keys("herd:files@*")
    redis.zadd(due, {f"default/{file_id}": 1})
    gateway.context.feeder.look_soon()
    wait_until(lambda: file_id not in files_in(gateway), "its bytes are deleted")


def test_a_file_that_a_batch_reads_stays(api: BatchApi, stand_in: StandIn) -> None:
    stand_in.hold()
    file_id = api.upload(lines(rows(3))).json["id"]
    batch_id = api.create(file_id).json["id"]
    refused = api.ask("DELETE", f"/v1/files/{file_id}")
    assert (refused.status, refused.error["code"]) == (409, "file_in_use")
    stand_in.go_on()
    api.end_of(batch_id)
    assert api.ask("DELETE", f"/v1/files/{file_id}").status == 200


def test_files_are_listed_by_pages_in_either_order(api: BatchApi) -> None:
    made = [api.upload(b"{}\n").json["id"] for _ in range(5)]
    for order, expected in (("asc", made), ("desc", made[::-1])):
        assert api.ids(f"/v1/files?limit=2&order={order}&purpose=batch") == expected
    assert api.ask("GET", "/v1/files?purpose=batch_output").json["data"] == []
    for query in ("limit=0", "limit=x", "order=up", "after=file-1"):
        answer = api.ask("GET", f"/v1/files?{query}")
        assert (answer.status, answer.error["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_files_may_be_deleted_page_by_page(api: BatchApi, order: str) -> None:
    left = {api.upload(b"{}\n").json["id"] for _ in range(5)}
    after = ""
    while left:
        page = api.ask("GET", f"/v1/files?limit=2&order={order}{after}").json
        for file in page["data"]:
            assert api.ask("DELETE", f"/v1/files/{file['id']}").status == 200
            left.remove(file["id"])
        assert api.ask("GET", "/v1/files").status == 200  # somebody else looks at the list meanwhile
        after = f"&after={page['last_id']}"
    assert api.ask("GET", "/v1/files").json["data"] == []


def test_a_storage_that_does_not_answer_holds_up_nothing_else(
    api: BatchApi, gateway: GatewayThread, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id, answers, read = api.upload(b"{}\n").json["id"], Event(), Folder.read

    @contextmanager
    def read_late(*args: Any) -> Iterator[Any]:
        answers.wait(PATIENCE_S)
        with read(*args) as file:
            yield file

    monkeypatch.setattr(Folder, "read", read_late)
    others = ("/v1/batches", "/v1/files", f"/v1/files/{file_id}")
    num = 40  # more than asyncio has threads
    with ThreadPoolExecutor(num) as clients:
        late = [clients.submit(api.ask, "GET", f"/v1/files/{file_id}/content") for _ in range(num)]
        try:
            wait_until(lambda: gateway.num_requests == num, "all wait for the storage")
            assert [api.ask("GET", path).status for path in others] == [200] * len(others)
        finally:
            answers.set()
        assert {one.result().status for one in late} == {200}


def test_a_storage_that_does_not_answer_holds_up_no_end(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    with (
        GatewayProcess(redis_url, tmp_path / "log", HERD_GATEWAY_GRACE_S="0") as gateway,
        ExitStack() as held,
    ):
        api = BatchApi(lambda: gateway.url)
        file_id = api.upload(b"{}\n").json["id"]
        (path,) = tmp_path.rglob(file_id)
        path.unlink()
        os.mkfifo(path)

        def is_read() -> bool:
            """Whether the gateway waits for what comes through the pipe. Nothing does, from then on."""
            try:
                held.callback(os.close, os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                return False
            return True

        with ThreadPoolExecutor(1) as client:
            client.submit(api.ask, "GET", f"/v1/files/{file_id}/content")
            wait_until(is_read, "the file is read")
            gateway.process.terminate()
            assert gateway.process.wait(PATIENCE_S) == 0


def test_tenants_see_only_their_own(holder: Callable[..., BatchApi]) -> None:
    own, other = holder("acme"), holder("globex")
    file_id = own.upload(b"{}\n").json["id"]
    assert other.ask("GET", "/v1/files").json["data"] == []
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert other.ask(method, f"/v1/files/{file_id}{path}").status == 404
    assert other.create(file_id).status == 404
    assert own.ask("GET", f"/v1/files/{file_id}").status == 200


def test_a_subscriber_reads_answers_and_no_prompts(
    holder: Callable[..., BatchApi], stand_in: StandIn
) -> None:
    producer, subscriber = holder(), holder(role=KeyRole.SUBSCRIBER)
    batch = producer.end_of(producer.begin(rows(2)))
    assert subscriber.show(batch["id"])["status"] == "completed"
    assert len(subscriber.content(batch["output_file_id"])) == 2
    assert subscriber.ask("GET", f"/v1/files/{batch['input_file_id']}/content").status == 403
    assert subscriber.ask("GET", "/v1/files").status == 403
    assert subscriber.upload(b"{}\n").status == 403


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a\u0000b", "..", "x" * 4000, ""])
def test_a_name_is_never_a_path(api: BatchApi, gateway: GatewayThread, name: str) -> None:
    before = files_in(gateway)
    answer = api.upload(b"{}\n", name)
    if answer.status == 200:
        assert files_in(gateway) - before == {answer.json["id"]}
        assert answer.json["filename"].isprintable()
    else:  # no such form
        assert (answer.status, answer.error["code"]) == (400, "invalid_form")
    root = Path(gateway.context.settings.gateway_files)
    assert all(re.fullmatch(r"file-[0-9a-f]{24}", path.name) for path in (root / "default").iterdir())


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


def test_a_file_lives_as_long_as_was_asked(api: BatchApi, stand_in: StandIn) -> None:
    asked = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
    file = api.upload(lines(rows(1)), **asked).json
    assert file["expires_at"] - file["created_at"] == 7200
    made = api.create(file["id"], output_expires_after={"anchor": "created_at", "seconds": 3600}).json
    output = api.ask("GET", f"/v1/files/{api.end_of(made['id'])['output_file_id']}").json
    assert output["expires_at"] - output["created_at"] == 3600


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
    assert redis.hgetall("herd:default:quota") == {b"bytes": b"0"}


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


def test_a_file_in_another_gateways_storage_is_told(
    api: BatchApi, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    file_id = api.upload(b"{}\n").json["id"]
    with GatewayThread(redis_url, files=str(tmp_path)) as gateway:
        other = BatchApi(lambda: gateway.url)
        for answer in (other.ask("GET", f"/v1/files/{file_id}/content"), other.create(file_id)):
            assert (answer.status, answer.error["code"]) == (503, "files_elsewhere")


def test_lost_bytes_are_told(api: BatchApi, gateway: GatewayThread, stand_in: StandIn) -> None:
    file_id = api.upload(lines(rows(1))).json["id"]
    (Path(gateway.context.settings.gateway_files) / "default" / file_id).unlink()
    answer = api.ask("GET", f"/v1/files/{file_id}/content")
    assert (answer.status, answer.error["code"]) == (410, "file_lost")
    (error,) = api.end_of(api.create(file_id).json["id"])["errors"]["data"]
    assert error["code"] == "file_lost"
