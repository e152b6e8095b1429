"""A batch without files and without a command: rows from memory, answers to memory."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pkgutil import iter_modules
from typing import Any

import pytest
from redis import Redis

import llama_herd.tasks.batch
from benchmarks.stand_in import StandIn
from llama_herd.errors import RedisUnavailable
from llama_herd.tasks import Client
from llama_herd.tasks.batch import batch_run
from llama_herd.tasks.batch.answers import answered_row, error_line, output_line
from llama_herd.tasks.batch.batch_run import BatchLeft, BatchRun
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.client.batch.batch_progress import BatchProgress, DoneRows
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.row_feed import job_id_of
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.patience import PATIENCE_S
from tests.tasks.herd import Herd, end, started

NUM_ROWS = 40
BAD_LINE = 7
RUN_ID = "r"
ROWS = range(1, NUM_ROWS + 1)


class Memory:
    """Rows from memory and answers to memory, under one run's id; each start begins a new run."""

    flush_s = 0.0

    def __init__(self, client: Client, answers: list[bytes]) -> None:
        self.answers = answers
        self.shown: list[BatchStatus] = []
        self._client = client
        self._attend: Callable[[BatchRun], object] = lambda run: None

    def start(self, attend: Callable[[BatchRun], object] = lambda run: None, **options: Any) -> BatchRun:
        done = DoneRows()
        for answer in self.answers:
            row = answered_row(answer, RUN_ID)
            assert row is not None
            done.add(row, has_failed=json.loads(answer)["error"] is not None)
        rows = (SourceRow(n, {"prompt": "" if n == BAD_LINE else f"tale {n}"}) for n in ROWS)
        left = RequestReader(Settings(), RowOptions(), RUN_ID).rows_left(rows, done)
        max_errors = options.pop("max_errors", None)
        batch = self._client.batch(left, run_id=RUN_ID, **options)
        progress = BatchProgress(RUN_ID, "memory", NUM_ROWS, done)
        self._attend = attend
        run = BatchRun(self._client, batch, progress, self, max_errors=max_errors)
        with suppress(BatchLeft):
            run.run()
        return run

    def attend(self, run: BatchRun) -> None:
        self._attend(run)

    def write(self, items: Sequence[BatchItem]) -> None:
        self.answers += ((error_line if item.failure else output_line)(RUN_ID, item) for item in items)

    def show(self, status: BatchStatus) -> None:
        self.shown.append(status)

    @property
    def rows(self) -> list[int]:
        return [row for one in self.answers if (row := answered_row(one, RUN_ID)) is not None]


@pytest.mark.redis
def test_every_row_is_answered_once_though_the_run_was_interrupted(redis_url: str) -> None:
    """However many rounds a start had, it ends right behind its writing, as a kill would end it."""
    with Client(redis_url) as client, StandIn(redis_url):
        memory = Memory(client, [])
        for num_answers in (1, 15, 16, 33):

            def leave_behind(_: BatchRun, num: int = num_answers) -> None:
                if len(memory.answers) >= num:
                    raise BatchLeft

            memory.start(leave_behind, window=8)
            assert num_answers <= len(memory.answers) < NUM_ROWS
        memory.start()
    assert sorted(memory.rows) == list(ROWS)
    found = [json.loads(answer) for answer in memory.answers]
    assert [answer["custom_id"] for answer in found if answer["error"]] == [f"line-{BAD_LINE}"]
    status = memory.shown[-1]
    assert (status.state, status.num_done, status.num_failed) == ("done", NUM_ROWS - 1, 1)
    assert status.num_under_way == 0


@pytest.mark.redis
@pytest.mark.parametrize("in_order", [False, True])
def test_a_cancelled_run_writes_no_cancelled_row_and_in_order_none_behind_one(
    redis_url: str, in_order: bool
) -> None:
    def cancel_when_full(run: BatchRun) -> None:
        if run.window.num_under_way == NUM_ROWS - 1:  # no worker: nothing but the bad line ends
            run.cancel()

    with Client(redis_url) as client:
        memory = Memory(client, [])
        memory.start(cancel_when_full, window=NUM_ROWS, in_order=in_order)
        assert memory.shown[-1].state == "cancelled"
        assert memory.rows == ([] if in_order else [BAD_LINE])
        with StandIn(redis_url):
            memory.start(in_order=in_order)
    assert sorted(memory.rows) == list(ROWS)


@pytest.mark.redis
def test_a_run_that_has_too_many_failed_rows_takes_no_more_rows_from_its_start(redis_url: str) -> None:
    with Client(redis_url) as client, StandIn(redis_url):
        memory = Memory(client, [])
        run = memory.start(window=2, max_errors=0)
        assert BAD_LINE in memory.rows
        assert len(memory.rows) < NUM_ROWS
        assert run.stop_reason == "the failed rows are more than 0"
        assert memory.shown[-1].state == "stopped"
        before = list(memory.rows)
        memory.start(max_errors=0)
    assert memory.rows == before


@pytest.mark.redis
def test_what_a_worker_ends_after_the_cancel_is_waited_for(redis: Redis, redis_url: str) -> None:
    herd, job_id = Herd(redis, Ledger()), job_id_of(RUN_ID, "1", 1)

    def end_it_a_round_later(run: BatchRun) -> None:
        if run.window.is_cancelled:
            herd.kinds("one", end(job_id, 2, 0))
        elif run.window.num_under_way == NUM_ROWS - 1:
            herd.claimed(job_id)
            herd.kinds("one", started(job_id))
            run.cancel(PATIENCE_S)

    with Client(redis_url) as client:
        memory = Memory(client, [])
        memory.start(end_it_a_round_later, window=NUM_ROWS)
    assert memory.shown[-1].state == "cancelled"
    assert sorted(memory.rows) == [1, BAD_LINE]


@pytest.mark.redis
def test_a_job_that_does_not_end_is_given_up_after_what_has_ended_is_written(redis_url: str) -> None:
    """Items that are gathered are written before the run ends."""

    class Gathering(Memory):
        flush_s = 3600.0

    def cancel_in_the_middle(run: BatchRun) -> None:
        if run.progress.num_done_here:
            run.cancel(0.0)

    with Client(redis_url) as client, StandIn(redis_url):
        memory = Gathering(client, [])
        run = memory.start(cancel_in_the_middle, window=8)
    assert len(memory.rows) == len(set(memory.rows)) == run.progress.num_here > 0
    assert memory.shown[-1].state == "cancelled"


@pytest.mark.redis
def test_a_cancel_that_redis_did_not_hear_is_made_up_for_before_the_run_ends(redis_url: str) -> None:
    def cancel_in_an_outage(run: BatchRun) -> None:
        if run.window.num_under_way == NUM_ROWS - 1 and not run.window.is_cancelled:
            there, run.batch._run = run.batch._run, nowhere._run
            try:
                run.cancel(0.0)
            finally:
                run.batch._run = there

    with Client(redis_url) as client, Client("redis://127.0.0.1:1/0") as nowhere:
        memory = Memory(client, [])
        memory.start(cancel_in_an_outage, window=NUM_ROWS)
        assert memory.shown[-1].state == "cancelled"
        assert client.count_jobs() == 0


@pytest.mark.redis
def test_an_outage_costs_no_row_and_ends_no_run(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "RETRY_S", 0.0)
    outages: list[RedisUnavailable | None] = []

    def lose_redis_twice(run: BatchRun) -> None:
        outages.append(run.outage)
        if len(outages) in (2, 3):
            raise RedisUnavailable(f"round {len(outages)}")

    with Client(redis_url) as client, StandIn(redis_url):
        memory = Memory(client, [])
        memory.start(lose_redis_twice)
    assert sorted(memory.rows) == list(ROWS)
    assert [str(outage) for outage in outages[:5]] == ["None", "None", "round 2", "round 3", "None"]


@pytest.mark.redis
def test_workers_that_a_full_redis_silences_are_not_said_to_be_missing(redis_url: str) -> None:
    named: list[str] = []

    def look(run: BatchRun) -> None:
        if run.window.without_worker:
            named.append(run.status("running").unserved)
            run.window.refusal = "Redis is full"
            named.append(run.status("running").unserved)
            raise BatchLeft

    with Client(redis_url) as client:
        Memory(client, []).start(look)
    assert named == ["tales", ""]


@pytest.mark.redis
def test_who_asks_a_batch_to_end_is_heard_by_its_owner(redis_url: str) -> None:
    def end_when_asked(run: BatchRun) -> None:
        if run.is_asked_to_end:
            run.cancel()
        elif run.window.num_under_way == NUM_ROWS - 1:
            client.end_batch(RUN_ID)

    with Client(redis_url) as client:
        memory = Memory(client, [])
        memory.start(end_when_asked, window=NUM_ROWS)
    assert memory.rows == [BAD_LINE]
    assert [status.state for status in memory.shown][-1] == "cancelled"


@pytest.mark.long
def test_the_engine_of_a_batch_brings_no_tables_no_torch_and_no_command() -> None:
    names = [one.name for one in iter_modules(llama_herd.tasks.batch.__path__)]
    code = f"import sys, {', '.join(f'llama_herd.tasks.batch.{name}' for name in names)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "batch_run" in names
    assert not set(done.stdout.split()) & {"torch", "numpy", "pyarrow", "llama_herd.cli", "llama_herd.worker"}
