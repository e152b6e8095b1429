"""Batches and files in the ledger: one feeder at a time, each end once, quotas that add up."""

import random
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger import stored_files
from llama_herd.tasks.ledger.batch_records import (
    BatchRecord,
    BatchRecords,
    BatchRequest,
    BatchState,
    ClaimedBatch,
)
from llama_herd.tasks.ledger.outbox import Outbox
from llama_herd.tasks.ledger.redis_call import RedisCall, redis_time_ms, run_call
from llama_herd.tasks.ledger.stored_files import (
    NewFile,
    Quota,
    QuotaExceeded,
    StoredFile,
    StoredFiles,
    due_items,
)

pytestmark = pytest.mark.redis

FILES, BATCHES = StoredFiles("acme", "disk"), BatchRecords("acme", "disk")
NONE = Quota(0, 0)
BATCH = "batch_1"
LEASE_MS = 60_000


class Records:
    """The calls with a connection."""

    def __init__(self, redis: Redis) -> None:
        self.redis: Any = redis

    def __call__(self, call: RedisCall[Any]) -> Any:
        return run_call(self.redis, call)

    def add(self, name: str, num_bytes: int = 1, owner: str = "", life_ms: int | None = None) -> Any:
        return self(FILES.add(NewFile(name, "in.jsonl", "batch", num_bytes, owner, life_ms), NONE, NONE))

    def create(self, owner: str = "") -> BatchRecord:
        self.add("file-1")
        asked = BatchRequest("file-1", "/v1/completions", "24h", {"a": "b"}, None, owner)
        made = self(BATCHES.create(BATCH, asked, 86_400_000))
        assert isinstance(made, BatchRecord)
        return made

    def claimed(self) -> ClaimedBatch:
        """Taken by a new feeder, whoever has it."""
        self.redis.zadd(BATCHES.due_key, {f"acme/{BATCH}": 1})
        found = self(BATCHES.claim(BATCH, LEASE_MS))
        assert isinstance(found, ClaimedBatch)
        return found

    def due(self) -> list[str]:
        return [one.id for one in self(due_items(BATCHES.due_key, 10, LEASE_MS))]

    def quota(self) -> dict[str, int]:
        found = self.redis.hgetall("herd:acme:quota")
        named = {name.decode(): num for name, num in found.items()}
        return {name: int(num) for name, num in named.items() if not name.startswith("upload:")}


@pytest.fixture
def records(redis: Redis) -> Records:
    return Records(redis)


def test_a_batch_is_what_was_asked_for(records: Records) -> None:
    made = records.create(owner="key")
    assert (made.state, made.input_name, made.run_id, made.epoch) == ("validating", "in.jsonl", "1", 0)
    assert made.request == BatchRequest("file-1", "/v1/completions", "24h", {"a": "b"}, None, "key")
    assert made.expires_ms - made.created_ms == 86_400_000
    assert records(BATCHES.get(BATCH)) == made


def test_one_feeder_has_it_at_a_time(records: Records) -> None:
    records.create()
    assert records.due() == [BATCH]
    first = records(BATCHES.claim(BATCH, LEASE_MS))
    assert (first.record.epoch, records.due()) == (1, [])
    assert records(BATCHES.claim(BATCH, LEASE_MS)) is None
    second = records.claimed().record
    assert second.epoch == 2
    assert records(BATCHES.note(BATCH, 1, LEASE_MS)) is None
    assert records(BATCHES.start(first.record, LEASE_MS, 5, "m", NONE)) is None
    assert not records(BATCHES.end(first.record, "completed"))
    assert records(BATCHES.note(BATCH, 2, LEASE_MS, "in_progress", num_done=3)) == "in_progress"
    assert records(BATCHES.get(BATCH)).num_done == 3


def test_a_feeder_may_give_it_back(records: Records) -> None:
    records.create()
    epoch = records.claimed().record.epoch
    records(BATCHES.note(BATCH, epoch, 0))
    assert records.due() == [BATCH]


def test_a_lease_of_a_clock_that_was_put_back_is_no_lease(records: Records) -> None:
    records.create()
    records.redis.zadd(BATCHES.due_key, {f"acme/{BATCH}": 9e15})
    assert records.due() == [BATCH]
    assert records(BATCHES.claim(BATCH, LEASE_MS)) is not None


def test_a_lease_counts_also_for_a_feeder_whose_own_are_shorter(records: Records) -> None:
    records.create()
    assert records(BATCHES.claim(BATCH, LEASE_MS)) is not None
    assert records(BATCHES.claim(BATCH, LEASE_MS // 100)) is None


def test_who_cancels_is_not_overruled(records: Records) -> None:
    records.create()
    epoch = records.claimed().record.epoch
    assert records(BATCHES.cancel(BATCH)).state == "cancelling"
    assert records(BATCHES.note(BATCH, epoch, LEASE_MS, "finalizing")) == "cancelling"
    assert records(BATCHES.cancel(BATCH)).state == "cancelling"


def test_an_outcome_is_not_cancelled_any_more(records: Records) -> None:
    records.create()
    epoch = records.claimed().record.epoch
    records(BATCHES.note(BATCH, epoch, LEASE_MS, "finalizing", outcome="completed"))
    assert records(BATCHES.cancel(BATCH)) == "finalizing"
    assert records(BATCHES.cancel("batch_2")) is None


def test_it_ends_once_with_its_files(records: Records) -> None:
    records.create(owner="key")
    record = records.claimed().record
    assert records(BATCHES.start(record, LEASE_MS, 7, "m", NONE)) == "in_progress"
    assert records.quota() == {"files": 1, "bytes": 1, "rows": 7, "rows:key": 7}
    assert records(FILES.drop("file-1")) == "in_use"
    out = NewFile("file-2", "out.jsonl", "batch_output", 10, "key")
    for _ in range(2):  # the answer to the first one may be lost
        assert records(BATCHES.end(record, "completed", [out], num_done=7))
    assert records.quota() == {"files": 2, "files:key": 1, "bytes": 11, "bytes:key": 10}
    ended = records(BATCHES.get(BATCH))
    assert (ended.state, ended.num_done, "completed" in ended.times) == ("completed", 7, True)
    assert records(FILES.get("file-2")).purpose == "batch_output"
    assert records(FILES.drop("file-1")) == "dropped"
    assert records.due() == [BATCH]  # until its parts are deleted
    assert records(BATCHES.cancel(BATCH)) == "completed"
    records(BATCHES.note_cleaned(BATCH))
    assert records.due() == []


def test_a_start_is_counted_once(records: Records) -> None:
    records.create()
    for _ in range(2):
        assert records(BATCHES.start(records.claimed().record, LEASE_MS, 7, "m", NONE)) == "in_progress"
    assert records.quota()["rows"] == 7


def test_rows_beyond_a_quota_do_not_start(records: Records) -> None:
    records.create(owner="key")
    record = records.claimed().record
    assert records(BATCHES.start(record, LEASE_MS, 7, "m", Quota(0, 6))) == QuotaExceeded("rows", "key", 0, 6)
    assert records(BATCHES.start(record, LEASE_MS, 7, "m", Quota(6, 0))) == QuotaExceeded(
        "rows", "tenant", 0, 6
    )
    assert records(BATCHES.start(record, LEASE_MS, 7, "m", Quota(7, 7))) == "in_progress"


def test_bytes_beyond_a_quota_are_not_reserved(records: Records) -> None:
    most = Quota(8, 6)
    assert records(FILES.reserve("file-1", "a", 5, most)) is None
    assert records(FILES.reserve("file-1", "a", 2, most)) == QuotaExceeded("bytes", "key", 5, 6)
    assert records(FILES.reserve("file-2", "b", 4, most)) == QuotaExceeded("bytes", "tenant", 5, 8)
    assert records(FILES.reserve("file-2", "b", 3, most)) is None


def test_quotas_are_the_sum_of_what_is_there(records: Records) -> None:
    draw = random.Random(1)
    there: dict[str, tuple[int, str]] = {}
    uploads: dict[str, tuple[int, str]] = {}
    for number in range(300):
        act = draw.random()
        if there and act < 0.3:
            name = draw.choice([*there])
            assert records(FILES.drop(name)) == "dropped"
            del there[name]
        elif act < 0.6:
            name, num_bytes, owner = f"file-{number}", draw.randrange(1000), draw.choice(["", "a", "b"])
            for part in (num_bytes, 10):
                assert records(FILES.reserve(name, owner, part, NONE)) is None
            uploads[name] = (num_bytes + 10, owner)
        elif uploads and act < 0.8:
            name = draw.choice([*uploads])
            num_bytes, owner = uploads.pop(name)
            if draw.random() < 0.5:
                assert records(FILES.drop(name)) == "unknown"
            else:
                assert isinstance(records.add(name, num_bytes - 5, owner), StoredFile)
                there[name] = (num_bytes - 5, owner)
        else:
            name, num_bytes, owner = f"file-{number}", draw.randrange(1000), draw.choice(["", "a", "b"])
            first, again = (records.add(name, num_bytes, owner) for _ in range(2))
            assert isinstance(first, StoredFile)
            assert first == again
            there[name] = (num_bytes, owner)
    counted = [*there.values(), *uploads.values()]
    expected = {"files": len(there), "bytes": sum(num_bytes for num_bytes, _ in counted)}
    for owner in ("a", "b"):
        expected |= {
            f"files:{owner}": sum(of == owner for _, of in there.values()),
            f"bytes:{owner}": sum(num_bytes for num_bytes, of in counted if of == owner),
        }
    assert records.quota() == {name: num for name, num in expected.items() if num}
    page = records(FILES.page("", 1000, "asc"))
    assert {fields[b"id"].decode() for fields in page.records} == there.keys()


@pytest.mark.parametrize(
    ("call", "key", "member", "delay_ms"),
    [
        (FILES.begin_upload("file-1"), FILES.files_due_key, "acme/file-1", stored_files.UPLOAD_MS),
        (FILES.put_off("file-1"), FILES.files_due_key, "acme/file-1", stored_files.AGAIN_MS),
        (stored_files.storage_seen("disk", 700), stored_files.STORAGES, "disk", 700),
    ],
)
def test_what_is_put_off_is_due_after_that(
    records: Records, call: RedisCall[None], key: str, member: str, delay_ms: int
) -> None:
    before = records(redis_time_ms())
    records(call)
    assert before <= records.redis.zscore(key, member) - delay_ms <= records(redis_time_ms())


def test_a_page_is_as_long_as_asked_for_within_a_bound(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_files, "MAX_PAGE", 3)
    for number in range(4):
        records.add(f"file-{number}")
    for limit in (1, 2, 3, 9):
        page = records(FILES.page("", limit, "asc"))
        assert (len(page.records), page.has_more) == (min(limit, 3), True)


def test_only_what_has_expired_is_dropped_for_that(records: Records) -> None:
    records.add("file-1", life_ms=60_000)
    records.add("file-2")
    due = records.redis.zrange(FILES.files_due_key, 0, -1, withscores=True)
    assert due == [(b"acme/file-1", records(FILES.get("file-1")).expires_ms)]
    assert records(FILES.drop("file-1", expired=True)) == "kept"
    assert records(FILES.drop("file-2", expired=True)) == "kept"
    assert records(FILES.drop("file-3", expired=True)) == "unknown"
    records.redis.hset(FILES.file_key("file-1"), "expires_ms", 1)
    assert records(FILES.page("", 9, "asc")).records[0][b"id"] == b"file-2"
    assert records(FILES.drop("file-1", expired=True)) == "dropped"


@pytest.mark.parametrize("expired", [True, False])
def test_whoever_drops_a_file_has_a_while_to_delete_its_bytes(records: Records, *, expired: bool) -> None:
    """Another gateway that dropped it meanwhile would take the place behind which a page begins."""
    for name in ("file-1", "file-2"):
        records.add(name)
    records.redis.hset(FILES.file_key("file-1"), "expires_ms", 1)
    assert records(FILES.drop("file-1", expired=expired)) == "dropped"
    assert records(due_items(FILES.files_due_key, 9)) == ()
    assert records.redis.zrange(FILES.files_due_key, 0, -1) == [b"acme/file-1"], (
        "if nobody deletes them by then"
    )
    (left,) = records(FILES.page("file-1", 9, "asc")).records
    assert left[b"id"] == b"file-2"


@pytest.mark.parametrize("final", ["completed", "failed", "expired", "cancelled"])
@pytest.mark.parametrize("webhook", ["", "https://example.com/own"])
def test_its_end_and_its_webhook_are_written_together(
    records: Records, final: BatchState, webhook: str
) -> None:
    records.redis.hset("herd:acme:webhook", "jobs", 0)
    records.add("file-1")
    records(BATCHES.create(BATCH, BatchRequest("file-1", "/v1/completions", "24h", webhook=webhook), 10**8))
    record = records.claimed().record
    for _ in range(2):
        assert records(BATCHES.end(record, final))
    (entry,) = records(Outbox("acme").due(9, 1000))
    assert (entry.message, entry.type, entry.id) == (f"msg_{BATCH}", f"batch.{final}", BATCH)
    assert (entry.state, entry.url) == (final, webhook or None)


def test_the_secret_of_a_batch_is_kept_until_its_end_and_goes_to_its_webhook(records: Records) -> None:
    secret = "whsec_" + 32 * "A"
    records.redis.hset("herd:acme:webhook", "jobs", 0)
    records.add("file-1")
    asked = BatchRequest(
        "file-1", "/v1/completions", "24h", webhook="https://example.com/own", secret_sha256="0"
    )
    records(BATCHES.create(BATCH, asked, 10**8, webhook_secret=secret))
    record = records.claimed().record
    assert secret not in repr(record)
    assert records(BATCHES.end(record, "completed"))
    assert secret.encode() not in b"".join(records.redis.hvals(BATCHES.batch_key(BATCH)))
    (entry,) = records(Outbox("acme").due(9, 1000))
    assert entry.secret == secret


def test_a_tenant_without_webhooks_is_not_told(records: Records) -> None:
    records.create()
    assert records(BATCHES.end(records.claimed().record, "completed"))
    assert not records.redis.exists("herd:acme:outbox", "herd:acme:outbox:entries")


@pytest.mark.parametrize("name", ["webhook", "outbox", "outbox:entries", "outbox:dead"])
def test_an_outbox_of_another_type_holds_up_no_end(records: Records, name: str) -> None:
    records.redis.hset("herd:acme:webhook", "jobs", 0)
    records.redis.delete(f"herd:acme:{name}")
    records.redis.set(f"herd:acme:{name}", "x")
    records.create()
    assert records(BATCHES.end(records.claimed().record, "completed"))
    assert records(BATCHES.get(BATCH)).state == "completed"
