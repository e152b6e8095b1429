"""A batch without files and without a command: rows from memory, answers to memory."""

import json
import subprocess
import sys
from itertools import islice

import pytest

from benchmarks.stand_in import StandIn
from llama_herd.tasks import Client
from llama_herd.tasks.batch.done_lines import DoneLines
from llama_herd.tasks.batch.reply import error_line, output_line
from llama_herd.tasks.batch.request import RequestReader
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.source_row import SourceRow
from llama_herd.tasks.settings import Settings

NUM_ROWS = 40
BAD_LINE = 7


def lines_after(answers: list[bytes], redis_url: str, most: int | None = None) -> list[bytes]:
    """The answers to at most so many rows of those that are left."""
    rows = (SourceRow(n, {"prompt": "" if n == BAD_LINE else f"tale {n}"}) for n in range(1, NUM_ROWS + 1))
    done = DoneLines(int(json.loads(answer)["id"]) for answer in answers)
    left = RequestReader(Settings(), RowOptions(), "r").rows_left(rows, done)
    with Client(redis_url) as client, StandIn(redis_url):
        return [
            (error_line if item.failure else output_line)(str(item.index), item)
            for item in islice(client.batch(left, run_id="r"), most)
        ]


@pytest.mark.redis
def test_every_row_is_answered_once_though_the_run_was_interrupted(redis_url: str) -> None:
    first = lines_after([], redis_url, most=15)
    rest = lines_after(first, redis_url)
    found = [json.loads(answer) for answer in first + rest]
    assert len(first) == 15
    assert sorted(int(answer["id"]) for answer in found) == list(range(1, NUM_ROWS + 1))
    assert [answer["custom_id"] for answer in found if answer["error"]] == [f"line-{BAD_LINE}"]


def test_the_engine_of_a_batch_brings_no_tables_no_torch_and_no_command() -> None:
    names = ("custom_ids", "done_lines", "figures", "reply", "request", "row_options", "source_row")
    code = f"import sys, {', '.join(f'llama_herd.tasks.batch.{name}' for name in names)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not set(done.stdout.split()) & {"torch", "numpy", "pyarrow", "llama_herd.cli", "llama_herd.worker"}
