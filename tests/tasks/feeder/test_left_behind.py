"""What feeders do with batches that others have left: what has ended is written, and nothing is left over."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.batch.batch_run import BatchLeft
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.feeder import batch_execution
from llama_herd.tasks.feeder.answer_parts import AnswerParts, PartKind
from llama_herd.tasks.ledger.answers import Claimed
from llama_herd.tasks.ledger.batch_records import BatchRecords
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.stored_files import NewFile
from llama_herd.tasks.storage.folder import Folder
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


@pytest.fixture
def gateway(redis: Redis, redis_url: str) -> Iterator[GatewayThread]:
    with GatewayThread(redis_url) as gateway:
        yield gateway


def api_of(gateway: GatewayThread) -> BatchApi:
    return BatchApi(lambda: gateway.url)


def codes(errors: Sequence[dict[str, Any]]) -> set[str]:
    return {error["error"]["code"] for error in errors}


def names(answers: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(answer["custom_id"] for answer in answers)


def has_ended(client: Client) -> bool:
    """Whether no job waits, and none that was taken is unanswered."""
    status = client.status()
    return status.pending == status.running == 0


def test_what_ended_while_no_feeder_was_there_is_answered(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str
) -> None:
    api = api_of(other)
    with StandIn(redis_url, slots=8) as worker, Client(redis_url) as client:
        worker.hold()
        batch_id = api.begin(rows(100))
        with GatewayThread(redis_url, files=str(files)):
            wait_until(lambda: client.status().pending >= 16, "the window is full")
        worker.go_on()
        wait_until(lambda: has_ended(client), "what was under way has ended")
        answered = len(worker.answered)
        assert api.cancel(batch_id).status == 200
        with GatewayThread(redis_url, files=str(files)):
            batch = api.end_of(batch_id)
            wait_until(lambda: not redis.keys("herd:batches@*"), "nothing is left to do")
    done, undone = api.content(batch["output_file_id"]), api.content(batch["error_file_id"])
    assert batch["status"] == "cancelled"
    assert len(done) == answered >= 16
    assert names(done + undone) == names(rows(100))
    assert codes(undone) == {"batch_cancelled"}
    assert all(redis.hgetall(key).keys() == {b"state"} for key in redis.keys("herd:default:{batch-*"))


@pytest.mark.parametrize("dies", [False, True])
def test_a_cancel_that_was_accepted_is_the_end_however_late_it_came(
    gateway: GatewayThread, redis_url: str, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    write, write_file, api = AnswerParts.write, AnswerParts.write_file, api_of(gateway)
    asked: list[str] = []
    deaths = Counter[bool]()

    def write_and_cancel(parts: AnswerParts, items: Sequence[BatchItem]) -> None:
        write(parts, items)
        if items and parts.done.num_answered == 5:
            asked.append(api.cancel(parts.record.id).json["status"])

    def die_once(parts: AnswerParts, kind: PartKind) -> NewFile:
        deaths[dies] += 1
        if dies and deaths[dies] == 1:
            raise BatchLeft
        return write_file(parts, kind)

    monkeypatch.setattr(AnswerParts, "write", write_and_cancel)
    monkeypatch.setattr(AnswerParts, "write_file", die_once)
    with StandIn(redis_url):
        batch = api.end_of(api.begin(rows(5)))
    assert (asked, batch["status"]) == (["cancelling"], "cancelled")
    assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    assert names(api.content(batch["output_file_id"])) == names(rows(5))


def test_a_batch_whose_time_was_over_before_its_turn_has_a_line_for_each_row(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str
) -> None:
    api = api_of(other)
    batch_id = api.begin(rows(5))
    record = BatchRecords(storage=Folder(files).id).batch_key(batch_id)
    redis.hset(record, "expires_ms", 1)
    with GatewayThread(redis_url, files=str(files)), StandIn(redis_url) as worker:
        batch = api.end_of(batch_id)
        assert not worker.answered
    assert batch["status"] == "expired"
    assert batch["request_counts"] == {"total": 5, "completed": 0, "failed": 5}
    errors = api.content(batch["error_file_id"])
    assert (names(errors), codes(errors)) == (names(rows(5)), {"batch_expired"})


class Stuck(StandIn):
    """Begins each job, and never ends that of one row."""

    def _entries(self, job_id: str, claim: Claimed) -> list[EmitEntry]:
        return [] if job_id.endswith("-4") else super()._entries(job_id, claim)


def test_a_job_that_does_not_end_costs_no_other_row_its_answer(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that a storage gathers are written before the batch gives up waiting."""
    monkeypatch.setattr(batch_execution, "DRAIN_S", 0.2)
    monkeypatch.setattr(Folder, "flush_s", 3600.0)
    api = api_of(other)
    with GatewayThread(redis_url, files=str(files)), Stuck(redis_url) as worker:
        batch_id = api.begin(rows(10))
        wait_until(lambda: len(worker.answered) == 10, "all have begun")
        wait_until(lambda: redis.zcard("herd:default:leases") == 1, "all but one have ended")
        api.cancel(batch_id)
        batch = api.end_of(batch_id)
    assert batch["request_counts"] == {"total": 10, "completed": 9, "failed": 1}
    assert names(api.content(batch["error_file_id"])) == ["c3"]


def test_who_was_fenced_leaves_no_parts_of_a_batch_that_is_over(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str
) -> None:
    api = api_of(other)
    with GatewayThread(redis_url, files=str(files)), StandIn(redis_url) as worker:
        worker.hold()
        batch_id = api.begin(rows(5))
        wait_until(lambda: api.show(batch_id)["status"] == "in_progress", "it runs")
        late = files / "default" / batch_id
        late.mkdir(exist_ok=True)
        (late / "output-1.jsonl").write_bytes(b"late\n")
        records = BatchRecords(storage=Folder(files).id)
        redis.hset(records.batch_key(batch_id), mapping={"epoch": 9, "state": "completed"})
        run_call(redis, records.note_cleaned(batch_id))
        wait_until(lambda: not late.exists(), "its parts are deleted")


def test_redis_forgets_what_was_written_just_before_a_feeder_died(
    gateway: GatewayThread, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, deaths = AnswerParts.write, Counter[str]()

    def write_and_die(parts: AnswerParts, items: Sequence[BatchItem]) -> None:
        write(parts, items)
        if items and deaths["early"] < 2:
            deaths["early"] += 1
            raise BatchLeft

    monkeypatch.setattr(AnswerParts, "write", write_and_die)
    api = api_of(gateway)
    with StandIn(redis_url, slots=8):
        assert api.end_of(api.begin(rows(100)))["request_counts"]["completed"] == 100
    assert deaths["early"] == 2
    assert all(redis.hgetall(key).keys() == {b"state"} for key in redis.keys("herd:default:{batch-*"))


def test_no_job_of_a_batch_whose_input_is_lost_runs_on(
    other: GatewayThread, files: Path, redis_url: str
) -> None:
    api = api_of(other)
    with StandIn(redis_url, slots=8) as worker, Client(redis_url) as client:
        worker.hold()
        batch_id = api.begin(rows(100))
        with GatewayThread(redis_url, files=str(files)):
            wait_until(lambda: client.status().pending >= 16, "the window is full")
        (files / "default" / api.show(batch_id)["input_file_id"]).unlink()
        with GatewayThread(redis_url, files=str(files)):
            (error,) = api.end_of(batch_id)["errors"]["data"]
        assert error["code"] == "file_lost"
        assert not client.status().pending
