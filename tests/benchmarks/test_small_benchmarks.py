"""Dry runs: each command measures what it names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    fairness,
    gateway_cost,
    job_cost,
    latency,
    ledger,
    prefix,
    saturation,
    spread,
    submit,
    urgent_jobs,
    weights,
)
from benchmarks.report import Table, figure
from benchmarks.shapes import random_config
from benchmarks.speed.files import RandomFile

SMALL = random_config(hidden_size=256, num_layers=2, num_heads=4, ffn_size=512, vocab_size=2_048)

pytestmark = [pytest.mark.program, pytest.mark.usefixtures("one_thread", "forked_workers")]

TINY = RandomFile(
    "tiny",
    random_config(hidden_size=64, num_layers=1, num_heads=2, ffn_size=64, vocab_size=2_048),
    "Q8_0",
)


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


def test_with_the_prefix_cache_jobs_compute_less_than_a_page_of_a_common_prompt() -> None:
    plan = prefix.Plan(files=(TINY,), num_jobs=4, num_prefix=200, num_tail=16, max_tokens=2)
    off, on, again = rows(prefix.measure(plan))
    assert (off["prefilled a job"], off["hit rate"]) == (216, 0)
    assert (on["prefilled a job"], on["hit rate"]) == (216 - 192 * 3 / 4, 3 / 4)
    assert (again["prefilled a job"], again["hit rate"]) == (216 - 192, 1)


def test_streams_are_timed_while_a_long_prompt_is_computed() -> None:
    plan = latency.Plan((TINY,), (16, latency.WHOLE), slots=4, long_prompt=100, short_prompt=4, rounds=2)
    cut, whole = rows(latency.measure(plan))
    assert [row["prefill tokens"] for row in (cut, whole)] == [16, 8192]
    assert all(min(numbers(row)) > 0 for row in (cut, whole))
    assert [len(cut["first token ms"]), len(whole["gap p99 ms"])] == [2, 2]


def test_prompts_that_are_taken_whole_wait_for_no_step() -> None:
    ways = ("16", "learnt, jobs can wait", "8192")
    case = saturation.Case("tales", 12, slots=4, ways=ways, prompt_tokens=96, max_tokens=8, rounds=2)
    cut, patient, whole = rows(saturation.measure(saturation.Plan((case,))))
    assert [len(cut["rows that decode"]), len(whole["gap p50 ms"])] == [2, 2]
    assert 0 < cut["rows that decode"][0] < whole["rows that decode"][0] <= case.slots
    # How long such jobs wait hangs on what steps take here: test_prompt_shares.py has it by a made-up clock.
    assert 0 < patient["rows that decode"][0] <= case.slots


def test_short_jobs_cost_their_worker_and_redis_something() -> None:
    found = rows(job_cost.measure(job_cost.Plan((1, 30), jobs=40, slots=4, rounds=2)))
    assert [row["tokens a job"] for row in found] == [1, 30]
    assert all(len(row["worker, us a job"]) == 2 and min(numbers(row)) > 0 for row in found)


def test_a_gateway_costs_more_than_a_server_that_sends_the_same_parts() -> None:
    cases = gateway_cost.CASES
    plan = gateway_cost.Plan(cases, clients=4, requests=40, tokens_per_s=0, rounds=1)
    found = rows(gateway_cost.measure(plan))
    assert [row["asked"] for row in found] == [case.name for case in cases]
    assert all(row["us a request"][0] > row["floor, us a request"][0] > 0 for row in found)
    assert [row["events"] != "-" for row in found] == [bool(case.body.get("stream")) for case in cases]


def test_jobs_are_counted_by_worker_and_their_waits_timed() -> None:
    plan = spread.Plan(8, workers=2, many_workers=4, jobs=20, jobs_per_s=100, short_tokens=2, long_tokens=8)
    two, four, one = rows(spread.measure(plan))
    assert [row["rows each"] for row in (two, four, one)] == [4, 2, 8]
    assert one["jobs a worker"] == "20 to 20"
    assert 0 < two["waited p50 ms"] <= two["p99 ms"] <= two["longest ms"]


def test_the_calls_of_a_job_and_of_a_step_are_timed() -> None:
    calls, events = ledger.measure(ledger.Plan(4, (1, 3), num_steps=5, num_events=6))
    *life, job = calls.rows
    names = ["submit", "claim", "first event", "last event", "read for the result", "settle"]
    assert [call["call"] for call in life] == names
    assert job["us"] == pytest.approx(sum(float(str(call["us"])) for call in life))
    assert min(float(str(call["us"])) for call in life) > 0
    assert [event["rows a call"] for event in events.rows] == [1, 1, 1, 3, 3, 3]


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


def test_an_urgent_job_waits_for_no_row() -> None:
    plan = urgent_jobs.Plan(rows=2, num_waiting=6, long_tokens=300, num_equal=2, num_urgent=3, pause_s=0.01)
    equal, urgent = rows(urgent_jobs.measure(plan))
    assert (equal["preemptions"], equal["computed again"]) == (0, "0.00% of the tokens")
    assert urgent["preemptions"] > 0
    assert urgent["first token p50 s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("preset", weights.Plan.presets)
def test_a_command_computes_a_token_of_each_file(tmp_path: Path, preset: str) -> None:
    file = RandomFile("small", SMALL, preset)
    path = file.written(tmp_path)
    assert min(weights.start(path, "auto")) > 0
    before_ns = path.stat().st_mtime_ns
    assert file.written(tmp_path).stat().st_mtime_ns == before_ns
