"""What a disk has no room for is told, leaves nothing half written, and goes on once there is room."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.cli.batch.files import BatchPlan, RunFile
from llama_herd.errors import BadInput, HerdError, StorageFull
from llama_herd.tasks.feeder import batch_feeder
from llama_herd.tasks.storage.folder import Folder
from llama_herd.tasks.storage.line_file import CannotWrite, LineFile
from llama_herd.tasks.storage.storage import Storage, StoragePlace
from tests.batch_api import BatchApi, lines, rows
from tests.chaos.harness.patience import wait_until
from tests.full_disk import room_for
from tests.tasks.gateway.gateway_thread import GatewayThread

FILE = StoragePlace("acme", "file-1")
CONTENT = b"x" * 5000 + b"\n"


def draft(folder: Path) -> None:
    with Folder(folder).draft(FILE) as writing:
        for start in range(0, len(CONTENT), 1000):
            writing.write(CONTENT[start : start + 1000])
        writing.keep()


def journal(folder: Path) -> None:
    with Folder(folder).journal(FILE) as writing:
        writing([CONTENT])


def answers(folder: Path) -> None:
    with LineFile(folder / "out.jsonl") as file:
        file.append([CONTENT])


def run_file(folder: Path) -> None:
    (folder / "in.jsonl").touch()
    RunFile.open(BatchPlan(str(folder / "in.jsonl"), folder / "out.jsonl"))


WRITERS: Mapping[str, Callable[[Path], object]] = {
    "id": lambda folder: str(Folder(folder).id),
    "draft": draft,
    "journal": journal,
    "answers": answers,
    "run file": run_file,
}


def contents(folder: Path) -> dict[str, bytes]:
    """All files that are not empty, and not empty ones that are no journals."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("room", [0, 1, 7, 31, 999, 1000, 1001, 4096, 5000])
@pytest.mark.parametrize("name", WRITERS)
def test_what_does_not_fit_leaves_nothing(tmp_path: Path, name: str, room: int) -> None:
    write, complaint = WRITERS[name], ""
    try:
        with room_for(room):
            write(tmp_path)
    except (StorageFull, CannotWrite, BadInput) as error:
        complaint = str(error)
        left = contents(tmp_path)
        assert not any(left.values())
        assert not [path for path in left if path.endswith(".new")]
    assert not complaint or "File too large" in complaint
    write(tmp_path)
    assert any(contents(tmp_path).values())


def test_each_way_to_write_into_a_storage_is_tried() -> None:
    ways = {
        name
        for name, method in inspect.getmembers(Storage, inspect.isfunction)
        if {"write", "append"} & set(dir(inspect.signature(method).return_annotation))
        or name in ("draft", "journal")
    }
    assert ways <= WRITERS.keys()


@pytest.fixture
def gateway(redis: Redis, redis_url: str, tmp_path: Path) -> Iterator[GatewayThread]:
    with GatewayThread(redis_url, files=str(tmp_path)) as gateway:
        yield gateway


@pytest.mark.redis
@pytest.mark.parametrize("room", [0, 100, 1 << 20, 3_000_000])
def test_an_upload_without_room_is_told(gateway: GatewayThread, tmp_path: Path, room: int) -> None:
    api = BatchApi(lambda: gateway.url)
    content = b"y" * 3_000_001
    assert gateway.context.storage.id
    before = contents(tmp_path)
    with room_for(room):
        answer = api.upload(content)
    assert (answer.status, answer.error["code"]) == (507, "storage_full")
    assert str(tmp_path) not in answer.error["message"]
    assert contents(tmp_path) == before
    assert api.upload(content).status == 200


@pytest.mark.redis
@pytest.mark.parametrize("room", [50, 2000, 9000])
def test_a_batch_waits_for_room(
    gateway: GatewayThread, redis_url: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers, or the files that are made of them, do not fit for a while."""
    rests: list[HerdError] = []
    give_back = batch_feeder.BatchFeeder._give_back

    def note(feeder: Any, *given: Any, **how: Any) -> None:
        rests.append(given[0])
        give_back(feeder, *given, **how)

    monkeypatch.setattr(batch_feeder.BatchFeeder, "_give_back", note)
    monkeypatch.setattr(batch_feeder, "REST_S", 0.05)
    monkeypatch.setattr(batch_feeder, "LOOK_S", 0.05)
    api = BatchApi(lambda: gateway.url)
    file_id = api.upload(lines(rows(30))).json["id"]
    with StandIn(redis_url, slots=4):
        with room_for(room):
            batch_id = api.create(file_id).json["id"]
            wait_until(lambda: len(rests) >= 3, "it has rested some times")
        batch = api.end_of(batch_id)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 30)
    names = [one["custom_id"] for one in api.content(batch["output_file_id"])]
    assert sorted(names) == sorted(row["custom_id"] for row in rows(30))
