"""A hundred thousand rows: bounded memory, here and in Redis."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow.parquet import write_table

from benchmarks import batch
from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import free_port
from tests.batch_api import BatchApi
from tests.chaos.harness.patience import wait_until
from tests.cli.herd_command import start_herd

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(600)]

NUM_ROWS = 100_000
#: Of a million rows: 300 MB. Names and marks grow with the rows, the rest does not.
MAX_BYTES = 120e6
PATIENCE_S = 500.0


def test_a_hundred_thousand_rows_stay_within_their_memory() -> None:
    found = batch.with_stand_in(NUM_ROWS)
    assert found.summary["num_done"] == NUM_ROWS
    assert 0 < found.memory.most.command_bytes < MAX_BYTES
    assert found.memory.most.redis_bytes < MAX_BYTES


def test_a_gateway_stays_within_its_memory_too(tmp_path: Path, redis_url: str) -> None:
    batch.write_rows(tmp_path / "in.jsonl", NUM_ROWS)
    port, memory = free_port(), batch.Memory()
    api = BatchApi(lambda: f"http://127.0.0.1:{port}")
    own = {"PORT": str(port), "OPEN": "true", "REQUEST_LOG": "off", "FILES": str(tmp_path / "files")}
    room = {"FILE_BYTES": str(1 << 34), "BATCH_ROWS": str(NUM_ROWS)}
    settings = {f"HERD_GATEWAY_{name}": value for name, value in {**own, **room}.items()}
    gateway = start_herd(tmp_path, "gateway", HERD_REDIS_URL=redis_url, **settings)
    try:
        wait_until(lambda: answers(api), "the gateway is up")
        with StandIn(redis_url), memory.watching(gateway.pid, redis_url):
            uploaded = api.upload((tmp_path / "in.jsonl").read_bytes())
            found = api.end_of(api.create(uploaded.json["id"]).json["id"], PATIENCE_S)
    finally:
        gateway.kill()
        gateway.communicate()
    assert found["request_counts"]["completed"] == NUM_ROWS, found["errors"]
    assert 0 < memory.most.command_bytes < MAX_BYTES
    assert memory.most.redis_bytes < MAX_BYTES


def answers(api: BatchApi) -> bool:
    try:
        return api.ask("GET", "/v1/models").status == 200
    except OSError:
        return False


#: Reads a table of one row group as a run does, and says by how many bytes this process has grown.
READING = """
import resource, sys
from llama_herd.cli.batch.parquet_table import ArrowReader, ParquetTable
used = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = ParquetTable(sys.argv[1])
num, before = table.num_rows(), used()
assert sum(1 for _ in table.records(["prompt"])) == num
reader = ArrowReader(table, table.columns)
for first in range(1, num, 1000):
    assert reader.take(range(first, first + 1000))[0].length() == 1000
print(used() - before)
"""


def test_a_table_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path, num = tmp_path / "in.parquet", 300_000
    texts = [os.urandom(150).hex() for _ in range(num)]
    write_table(pyarrow.table({"prompt": texts, "other": texts[::-1]}), path, row_group_size=num)
    command = [sys.executable, "-c", READING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert path.stat().st_size > 120e6
    assert int(done.stdout) < 120e6
