"""Dry runs: each command measures what it names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    fairness,
    kernels,
    latency,
    ledger,
    prefix,
    saturation,
    submit,
    weights,
)
from benchmarks.load import Load
from benchmarks.report import Table, figure
from benchmarks.shapes import random_config, random_shape
from benchmarks.speed.files import RandomFile

SMALL = random_config(hidden_size=256, num_layers=2, num_heads=4, ffn_size=512, vocab_size=2_048)

pytestmark = [pytest.mark.program, pytest.mark.usefixtures("one_thread", "forked_workers")]

TINY = random_shape("tiny", hidden_size=64, num_layers=1, num_heads=2, ffn_size=64, vocab_size=2_048)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker, whatever the machine has: two that wait for each other take more, and longer."""
    for name in ("HERD_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


def rows(tables: Iterable[Table]) -> list[Any]:
    """All rows of the one table."""
    (table,) = tables
    assert str(table)
    return [*table.rows]


def numbers(row: Any) -> list[float]:
    """What a reader sees of a row, but for words."""
    return [float(figure(cell).replace(",", "")) for cell in row.values() if not isinstance(cell, str)]


def test_products_and_attention_are_timed_by_every_kernel_that_is_built(
    monkeypatch: pytest.MonkeyPatch, kernels_folder: Path
) -> None:
    monkeypatch.setenv("HERD_KERNELS_DIR", str(kernels_folder))
    plan = kernels.Products((1, 20), ((48, 512), (16, 256)), copies=2, rounds=2, threads=1)
    large, small = kernels.measure_products(plan)
    built = {f"{type}, {name}" for name in kernels.libraries() for type in kernels.TYPES}
    assert {str(row["us a product"]).rpartition(" ")[0] for row in large.rows} == built | {"torch,"}
    assert all(us > 0 for row in (*large.rows, *small.rows) for us in numbers(row))
    assert [large.title, small.title] == ["512 x 48", "256 x 16"]
    attending = kernels.Attending((1, 2), (70,), heads=2, kv_heads=1, cache_bytes=1, rounds=2, threads=1)
    (table,) = kernels.measure_attention(attending)
    assert all(us > 0 for row in table.rows for us in numbers(row))
    assert len(table.rows) >= 2


def test_with_the_prefix_cache_jobs_compute_less_than_a_page_of_a_common_prompt() -> None:
    plan = prefix.Plan(shapes=(TINY,), num_jobs=4, num_prefix=200, num_tail=16, max_tokens=2)
    off, on, again = rows(prefix.measure(plan))
    assert (off["all but the first"], off["hit rate"]) == (216, 0)
    assert on["all but the first"] < 64 < on["prefilled a job"]
    assert (again["all but the first"], again["hit rate"]) == (on["all but the first"], 1)


def test_streams_are_timed_beside_long_prompts_and_at_random_times() -> None:
    load = Load(
        slots=4,
        long_prompt=100,
        short_prompt=4,
        max_tokens=4,
        num_jobs=8,
        jobs_per_s=100.0,
        jobs_per_long=4,
    )
    case = latency.Case(TINY, load, beside=(16, latency.WHOLE), poisson=(16,), rounds=2)
    beside, poisson = latency.measure(latency.Plan((case,)))
    assert [row["prefill tokens"] for row in beside.rows] == [16, 8192]
    assert all(min(numbers(row)) > 0 and "-" in str(row["in all rounds"]) for row in beside.rows)
    assert "ttft short ms" in poisson.head


def test_prompts_that_are_taken_whole_wait_for_no_step() -> None:
    load = Load(slots=4, short_prompt=96, max_tokens=8, num_jobs=12)
    case = saturation.Case("tales", load, ways=("16", "learnt, jobs can wait", "8192"), rounds=2)
    cut, patient, whole = rows(saturation.measure(saturation.Plan((case,))))
    assert [len(cut["rows that decode"]), len(whole["gap p50 ms"])] == [2, 2]
    assert 0 < cut["rows that decode"][0] < patient["rows that decode"][0]
    assert cut["rows that decode"][0] < whole["rows that decode"][0] <= load.slots


def test_the_calls_of_a_job_and_of_a_step_and_a_sweep_are_timed() -> None:
    plan = ledger.Plan(4, (1, 3), num_steps=5, num_events=6, num_waiting=8, num_sweeps=3, waiting_s=0)
    calls, events, streams = ledger.measure(plan)
    *life, job, sweep = calls.rows
    names = ["submit", "claim", "first event", "last event", "read for the result", "settle"]
    assert [call["call"] for call in life] == names
    assert job["us"] == pytest.approx(sum(float(str(call["us"])) for call in life))
    assert min(float(str(call["us"])) for call in (*life, sweep)) > 0
    assert [event["rows a call"] for event in events.rows] == [1, 1, 1, 3, 3, 3]
    sizes = [float(str(stream["bytes, nodes of 4096"])) for stream in streams.rows]
    assert sizes == sorted(sizes, reverse=True)


def test_jobs_are_enqueued_alone_in_lots_and_by_batches() -> None:
    found = rows(submit.measure(submit.Plan(num_jobs=6, num_single=2, lots=(1, 4), window=3, rounds=1)))
    names = ["submit", "submit_many, lots of 1", "submit_many, lots of 4", "a batch, 3 rows a round"]
    assert [row["call"] for row in found] == names
    assert all(min(row["jobs/s"]) > 0 for row in found)


def test_a_burst_of_jobs_waits_behind_each_kind_of_flood() -> None:
    plan = fairness.Plan(rows=2, num_jobs=4, max_tokens=8, num_flood=12, floods=(0, 60), rounds=1)
    share, alone, behind = rows(fairness.measure(plan))
    assert (share["p99 over its share's"], behind["the burst"]) == (1, "behind 12 jobs of 60 tokens")
    assert alone["the burst"] == "alone, all rows"
    assert 0 < behind["first begins, s"][0] <= behind["wait p99 s"][0]


def test_a_type_is_read_as_the_gguf_package_reads_it() -> None:
    (row,) = rows(weights.measure_types(weights.Types(("Q4_K",), rounds=1)))
    assert (row["bytes a weight"], row["max error"]) == (0.562, 0.0)
    assert min(row["M values/s"], row["gguf package"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("preset", weights.Starts.presets)
def test_a_command_computes_a_token_of_each_file(tmp_path: Path, preset: str) -> None:
    file = RandomFile("small", SMALL, preset)
    path = file.written(tmp_path)
    assert min(weights.start(path, "auto")) > 0
    before_ns = path.stat().st_mtime_ns
    assert file.written(tmp_path).stat().st_mtime_ns == before_ns
