"""The benchmark of weights runs, on small shapes."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.shapes import random_config
from benchmarks.weights import starts, types, workers
from benchmarks.weights.files import MIXES, random_file
from benchmarks.weights.settings import BEFORE

pytestmark = pytest.mark.program

SMALL = random_config(hidden_size=256, num_layers=2, num_heads=4, ffn_size=512, vocab_size=2_048)


def test_a_type_is_read_as_the_gguf_package_reads_it() -> None:
    report = types.measure([GGMLType.Q4_K])
    (measured,) = report["types"]
    assert (measured["bytes_per_weight"], measured["max_error"]) == (0.562, 0.0)
    assert min(measured["values_per_s"], measured["gguf_values_per_s"]) > 0
    assert [len(table.rows) for table in types.tables(report)] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_a_command_computes_a_token_of_each_file(tmp_path: Path, mix: str) -> None:
    measured = starts.start(random_file(tmp_path, mix, SMALL), BEFORE)
    assert min(measured.values()) > 0
    begun = {"file": mix, "bytes": 1, "settings": BEFORE.name, **measured}
    report = {"bundled_peak_bytes": {BEFORE.name: 1}, "starts": [begun]}
    assert [len(table.rows) for table in starts.tables(report)] == [1]


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_is_timed_through_its_queue(tmp_path: Path) -> None:
    loads = (workers.Load("prompts", 2, 20, 1), workers.Load("rows", 2, 3, 4))
    path = random_file(tmp_path, "Q8_0", SMALL)
    speed = workers.speed(path, BEFORE, loads)
    assert min(speed["prompts"], speed["rows"]) > 0
    (table,) = workers.tables({"file": path.stem, "speeds": [speed]})
    assert table.head == ["settings", "prompts", "rows"]


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "Q8_0.gguf"
    path.write_bytes(b"there")
    assert random_file(tmp_path, "Q8_0", SMALL).read_bytes() == b"there"
