"""Files over HTTP: in by a form, out as they were, gone when they are deleted or their time is over."""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from time import time
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.ledger.redis_call import run_dialogue
from llama_herd.tasks.security.api_keys import KeyRole, create_key
from llama_herd.tasks.storage.folder import Folder
from tests.batch_api import BatchApi, lines, rows
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
    assert not redis.exists("herd:default:quota")
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


def test_a_file_lives_as_long_as_was_asked(api: BatchApi, stand_in: StandIn) -> None:
    asked = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
    file = api.upload(lines(rows(1)), **asked).json
    assert file["expires_at"] - file["created_at"] == 7200
    made = api.create(file["id"], output_expires_after={"anchor": "created_at", "seconds": 3600}).json
    output = api.ask("GET", f"/v1/files/{api.end_of(made['id'])['output_file_id']}").json
    assert output["expires_at"] - output["created_at"] == 3600


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
