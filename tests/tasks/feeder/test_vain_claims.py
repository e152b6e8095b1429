"""A batch that stops one feeder after the other ends, and one that only waits does not."""

from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.batch.batch_run import BatchLeft
from llama_herd.tasks.batch.source_row import NumberedLine, SourceRow, parse_row
from llama_herd.tasks.feeder import batch_execution, batch_feeder, batch_input
from llama_herd.tasks.feeder.batch_execution import MAX_VAIN_CLAIMS, BatchExecution
from llama_herd.tasks.feeder.batch_input import LONG_BYTES
from llama_herd.tasks.ledger.batch_records import BatchRecord, BatchRecords
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.storage.folder import Folder
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.redis


class Deaths:
    """Feeders that take a batch and are not heard of any more."""

    def __init__(self, redis: Redis, files: Path) -> None:
        self._redis = redis
        self._records = BatchRecords(storage=Folder(files).id)

    def strike(self, batch_id: str, num: int) -> None:
        for _ in range(num):
            assert self._takes(batch_id)
            self._end_lease(batch_id)

    def snatch(self, batch_id: str) -> None:
        """Take it from a feeder that lives, and whose lease has run out."""
        while not self._takes(batch_id):
            self._end_lease(batch_id)
        self._end_lease(batch_id)

    def _takes(self, batch_id: str) -> bool:
        return run_call(self._redis, self._records.claim(batch_id, 1)) is not None

    def _end_lease(self, batch_id: str) -> None:
        self._redis.zadd(self._records.due_key, {f"default/{batch_id}": 1}, xx=True)

    def num(self, batch_id: str) -> int:
        return self._record(batch_id).vain_claims

    def line(self, batch_id: str) -> int:
        return self._record(batch_id).line

    def epoch(self, batch_id: str) -> int:
        return self._record(batch_id).epoch

    def _record(self, batch_id: str) -> BatchRecord:
        record = run_call(self._redis, self._records.get(batch_id))
        assert record is not None
        return record


def test_a_batch_that_kills_its_feeders_ends_and_holds_up_no_other(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str
) -> None:
    api, deaths = BatchApi(lambda: other.url), Deaths(redis, files)
    poison, last_try, good = (api.begin(rows(3)) for _ in range(3))
    deaths.strike(poison, MAX_VAIN_CLAIMS)
    deaths.strike(last_try, MAX_VAIN_CLAIMS - 1)
    with GatewayThread(redis_url, files=str(files)), StandIn(redis_url):
        assert api.end_of(good)["status"] == api.end_of(last_try)["status"] == "completed"
        ended = api.end_of(poison)
        wait_until(lambda: not redis.keys("herd:batches@*"), "nothing is left to do")
    assert ended["status"] == "failed"
    (error,) = ended["errors"]["data"]
    assert error["code"] == "batch_poison"
    assert f"{MAX_VAIN_CLAIMS} gateways in turn" in error["message"]
    assert error["line"] is None


def test_the_long_line_that_was_begun_is_named(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(line: NumberedLine, *limits: int) -> SourceRow | None:
        if len(line.text or b"") >= LONG_BYTES:
            raise BatchLeft
        return parse_row(line, *limits)

    api, deaths = BatchApi(lambda: other.url), Deaths(redis, files)
    long = rows(1)[0] | {"custom_id": "long", "body": {"prompt": "x" * LONG_BYTES}}
    poison = api.begin([*rows(3), long, {**rows(1)[0], "custom_id": "last"}])
    with monkeypatch.context() as patched:
        patched.setattr(batch_input, "parse_row", die)
        with GatewayThread(redis_url, files=str(files)):
            wait_until(lambda: deaths.line(poison) == 4, "the line is begun")
    deaths.strike(poison, MAX_VAIN_CLAIMS)
    with GatewayThread(redis_url, files=str(files)):
        (error,) = api.end_of(poison)["errors"]["data"]
    assert (error["code"], error["line"]) == ("batch_poison", 4)


def test_a_batch_that_was_given_back_was_not_taken_in_vain(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker is there, so nothing is answered; gateways come and go, as when they are deployed."""
    monkeypatch.setattr(batch_execution, "HARMLESS_S", 3600.0)
    api, deaths = BatchApi(lambda: other.url), Deaths(redis, files)
    batch_id = api.begin(rows(3))
    for _ in range(2):
        with GatewayThread(redis_url, files=str(files)):
            wait_until(lambda: api.show(batch_id)["status"] == "in_progress", "it runs")
            wait_until(lambda: redis.keys("herd.tales*"), "its rows wait")
        assert deaths.num(batch_id) == 0


def test_deaths_beside_a_batch_that_waits_long_are_none_of_its_doing(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_execution, "HARMLESS_S", 0.1)
    api, deaths = BatchApi(lambda: other.url), Deaths(redis, files)
    batch_id = api.begin(rows(3))
    with GatewayThread(redis_url, files=str(files)):
        wait_until(lambda: api.show(batch_id)["status"] == "in_progress", "it runs")
    deaths.strike(batch_id, MAX_VAIN_CLAIMS - 1)
    assert deaths.num(batch_id) == MAX_VAIN_CLAIMS - 1
    with GatewayThread(redis_url, files=str(files)):
        wait_until(lambda: deaths.num(batch_id) == 0, "it has waited long enough")


def test_an_error_that_no_retry_mends_ends_the_batch(
    other: GatewayThread, files: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: BatchExecution) -> None:
        raise MemoryError

    monkeypatch.setattr(batch_feeder, "REST_S", 0.0)
    monkeypatch.setattr(batch_feeder, "LOOK_S", 0.05)
    monkeypatch.setattr(BatchExecution, "_check_and_start", stumble)
    api = BatchApi(lambda: other.url)
    with GatewayThread(redis_url, files=str(files)):
        ended = api.end_of(api.begin(rows(3)))
    assert (ended["status"], ended["errors"]["data"][0]["code"]) == ("failed", "batch_poison")


def test_a_feeder_that_loses_the_batch_and_lives_was_not_stopped_by_it(
    other: GatewayThread, files: Path, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while Redis is away for longer than a lease: of those that take it in turn the others die."""
    monkeypatch.setattr(batch_execution, "HARMLESS_S", 3600.0)
    monkeypatch.setattr(batch_feeder, "LOOK_S", 0.05)
    api, deaths = BatchApi(lambda: other.url), Deaths(redis, files)
    batch_id, num_deaths = api.begin(rows(3)), 3
    with GatewayThread(redis_url, files=str(files), batch_lease_s=0.3):
        for number in range(num_deaths + 1):
            wait_until(lambda: deaths.epoch(batch_id) == 2 * number + 1, "it is run")  # noqa: B023
            wait_until(lambda: api.show(batch_id)["status"] == "in_progress", "its rows wait")
            if number < num_deaths:
                deaths.snatch(batch_id)
        wait_until(lambda: deaths.num(batch_id) == num_deaths + 1, "those that died count, and who has it")
