"""A batch without files and without a command: rows from memory, answers to memory."""

import json
import subprocess
import sys
from pkgutil import iter_modules
from typing import Any

import pytest

import llama_herd.tasks.batch
from benchmarks.stand_in import StandIn
from llama_herd.tasks import Client
from llama_herd.tasks.batch.answer_line import answered_row, error_line, output_line
from llama_herd.tasks.batch.batch_progress import BatchProgress
from llama_herd.tasks.batch.batch_run import BatchRun
from llama_herd.tasks.batch.done_rows import DoneRows
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.settings import Settings

NUM_ROWS = 40
BAD_LINE = 7
RUN_ID = "r"
ROWS = range(1, NUM_ROWS + 1)


class Run:
    """Rows from memory and answers to memory, under one run's id; each start begins a new one."""

    def __init__(self, client: Client, answers: list[bytes], **options: Any) -> None:
        done = DoneRows(row for answer in answers if (row := answered_row(answer, RUN_ID)) is not None)
        rows = (SourceRow(n, {"prompt": "" if n == BAD_LINE else f"tale {n}"}) for n in ROWS)
        left = RequestReader(Settings(), RowOptions(), RUN_ID).rows_left(rows, done)
        max_errors = options.pop("max_errors", None)
        self.batch = client.batch(left, run_id=RUN_ID, **options)
        num_failed = sum(json.loads(answer)["error"] is not None for answer in answers)
        figures = BatchProgress(RUN_ID, "memory", NUM_ROWS, len(answers) - num_failed, num_failed)
        self.run = BatchRun(self.batch.window, figures, max_errors=max_errors)
        self.answers = answers

    def advance(self) -> None:
        """One round, whose answers are written before the next."""
        for item in self.run.answers(self.batch.poll()):
            self.answers.append((error_line if item.failure else output_line)(RUN_ID, item))

    def end(self) -> None:
        while not self.batch.window.is_over:
            self.advance()

    @property
    def rows(self) -> list[int]:
        return [row for one in self.answers if (row := answered_row(one, RUN_ID)) is not None]


@pytest.mark.redis
def test_every_row_is_answered_once_though_the_run_was_interrupted(redis_url: str) -> None:
    """However many rounds a start had, it ends right behind its writing, as a kill would end it."""
    with Client(redis_url) as client, StandIn(redis_url):
        answers: list[bytes] = []
        for num_answers in (1, 15, 16, 33):
            run = Run(client, answers, window=8)
            while len(answers) < num_answers:
                run.advance()
        run = Run(client, answers)
        run.end()
    assert sorted(run.rows) == list(ROWS)
    found = [json.loads(answer) for answer in answers]
    assert [answer["custom_id"] for answer in found if answer["error"]] == [f"line-{BAD_LINE}"]
    status = run.run.status("done")
    assert (status.num_done, status.num_failed, status.num_under_way) == (NUM_ROWS - 1, 1, 0)


@pytest.mark.redis
@pytest.mark.parametrize("in_order", [False, True])
def test_a_cancelled_run_writes_no_cancelled_row_and_in_order_none_behind_one(
    redis_url: str, in_order: bool
) -> None:
    with Client(redis_url) as client:
        run = Run(client, [], window=NUM_ROWS, in_order=in_order)
        while run.batch.window.num_under_way < NUM_ROWS - 1:  # no worker: nothing but the bad line ends
            run.advance()
        run.batch.cancel()
        run.end()
        assert run.rows == ([] if in_order else [BAD_LINE])
        with StandIn(redis_url):
            again = Run(client, run.answers, in_order=in_order)
            again.end()
    assert sorted(again.rows) == list(ROWS)


@pytest.mark.redis
def test_a_run_that_has_too_many_failed_rows_takes_no_more_rows_from_its_start(redis_url: str) -> None:
    with Client(redis_url) as client, StandIn(redis_url):
        run = Run(client, [], window=2, max_errors=0)
        run.end()
        assert BAD_LINE in run.rows
        assert len(run.rows) < NUM_ROWS
        assert run.run.stop_reason == "more than 0 rows failed"
        again = Run(client, list(run.answers), max_errors=0)
        again.end()
    assert again.rows == run.rows


def test_the_engine_of_a_batch_brings_no_tables_no_torch_and_no_command() -> None:
    names = [one.name for one in iter_modules(llama_herd.tasks.batch.__path__)]
    code = f"import sys, {', '.join(f'llama_herd.tasks.batch.{name}' for name in names)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "batch_run" in names
    assert not set(done.stdout.split()) & {"torch", "numpy", "pyarrow", "llama_herd.cli", "llama_herd.worker"}
