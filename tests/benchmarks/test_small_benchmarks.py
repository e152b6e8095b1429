"""Dry runs: each command measures what it names."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    code_size,
    fairness,
    fleet,
    gateway,
    gateway_tokens,
    host_steps,
    kernels,
    ledger,
    parsers,
    prefix,
    readers,
    sampling,
    scheduler,
    submit,
    subscribers,
    webhooks,
)
from benchmarks.shapes import random_shape

pytestmark = [pytest.mark.program, pytest.mark.usefixtures("one_thread", "forked_workers")]

TINY = random_shape("tiny", hidden_size=64, num_layers=1, num_heads=2, ffn_size=64, vocab_size=2_048)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker, whatever the machine has: two that wait for each other take more, and longer."""
    for name in ("HERD_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


def test_drawing_is_timed_for_every_request_and_the_floor() -> None:
    report = sampling.measure(sampling.Plan(rows=(1, 3), vocabularies=(700,), lengths=(0, 6), rounds=2))
    for run in report["runs"]:
        assert run["ms"].keys() == {"floor", *sampling.REQUESTS}
        assert all(ms > 0 for ms in run["ms"].values())
    assert [run["ids a row"] for run in report["lengths"]] == [0, 6]
    table, by_length = sampling.tables(report)
    assert len(by_length.rows) == 2
    assert table.head == ["ms a step", "1 x 700", "3 x 700"]


def test_products_are_timed_by_every_kernel_that_is_built(
    monkeypatch: pytest.MonkeyPatch, kernels_folder: Path
) -> None:
    monkeypatch.setenv("HERD_KERNELS_DIR", str(kernels_folder))
    shapes = ((48, 512), (16, 256))
    report = kernels.measure(kernels.Plan(tokens=(1, 20), shapes=shapes, copies=2, rounds=2, threads=1))
    built = {f"{type}, {name}" for name in kernels.libraries() for type in kernels.Plan.types}
    ways = report["runs"][0]["us"]
    assert {way.rpartition(" ")[0] for way in ways} == built | {"torch,"}
    assert all(us > 0 for run in report["runs"] for us in run["us"].values())
    assert [table.title for table in kernels.tables(report)] == ["512 x 48", "256 x 16"]


def test_with_the_prefix_cache_jobs_compute_less_than_a_page_of_a_common_prompt() -> None:
    plan = prefix.Plan(shapes=(TINY,), num_jobs=4, num_prefix=200, num_tail=16, max_tokens=2)
    off, on, again = prefix.measure(plan)["runs"]
    assert (off["all but the first"], off["hit rate"]) == (216, 0)
    assert on["all but the first"] < 64 < on["prefilled a job"]
    assert (again["all but the first"], again["hit rate"]) == (on["all but the first"], 1)


def test_scheduling_is_timed_and_its_costs_are_named() -> None:
    report = scheduler.measure(
        scheduler.Plan(rows=4, waiting=8, num_prompt=4, max_tokens=40, steps=10, widths=(1, 3))
    )
    assert [run["rows"] for run in report["host"]] == [1, 3]
    assert all(0 < run["median us"] <= run["longest us"] for run in report["runs"])
    assert all(0 < one["share"] < 1 for one in report["profile"])
    assert "`benchmarks/scheduler.py`" not in {one["in"] for one in report["profile"]}


def test_the_hosts_part_of_a_step_is_timed_with_and_without_overlap() -> None:
    runs = host_steps.measure(host_steps.Plan(rows=(1, 3), steps=5))["runs"]
    assert [(run["steps"], run["draw"]) for run in runs] == [
        (steps, way) for way in host_steps.WAYS for steps in host_steps.RUNNERS
    ]
    assert all(run[f"{rows} rows, us"] > 0 for run in runs for rows in (1, 3))


def test_the_calls_of_a_job_and_of_a_step_and_a_sweep_are_timed() -> None:
    few = ledger.Plan(num_jobs=4, batches=(1, 3), num_steps=5, num_events=6, num_waiting=8)
    plan = replace(few, num_sweeps=3, waiting_s=0)
    found = ledger.measure(plan)
    *life, job, sweep = found["calls"]
    names = ["submit", "claim", "first event", "last event", "read for the result", "settle"]
    assert [call["call"] for call in life] == names
    assert job["us"] == pytest.approx(sum(call["us"] for call in life))
    assert min(call["us"] for call in (*life, sweep)) > 0
    assert [event["rows a call"] for event in found["events"]] == [1, 1, 1, 3, 3, 3]
    sizes = [stream["bytes, nodes of 4096"] for stream in found["streams"]]
    assert sizes == sorted(sizes, reverse=True)


def test_idle_and_busy_workers_are_simulated_and_what_a_redis_carries_is_reckoned() -> None:
    few = fleet.Plan(workers=(1, 6), tenants=(2,), num_of_many=1, busy=(2,), num_often=(), rows=2)
    found = fleet.measure(replace(few, seldom=fleet.Load(20.0, 100), readers=3, seconds=1.0, calm_s=0.5))
    assert [run["workers"] for run in (*found["idle"], *found["of_many_tenants"])] == [1, 6, 1]
    assert [run["workers"] for run in found["busy"]] == [2]
    assert all(run["commands/s"] > 0 for run in found["idle"])
    assert all(run["events/s"] > 0 and run["lag p50, ms"] > 0 for run in found["busy"])
    idle, *rest = found["on_paper"]
    assert idle["workers"] > max(run["workers"] for run in rest) > 0
    assert [run["events/s a worker"] for run in rest] == [64, 640, 1600]


def test_jobs_are_enqueued_alone_in_lots_and_by_batches() -> None:
    plan = submit.Plan(num_jobs=6, num_single=2, lots=(1, 4), window=3, rounds=1)
    calls = submit.measure(plan)["calls"]
    names = ["submit", "submit_many, lots of 1", "submit_many, lots of 4", "a batch, 3 rows a round"]
    assert [call["call"] for call in calls] == names
    assert all(call["jobs/s"] > 0 for call in calls)


def test_a_worker_is_timed_beside_each_kind_of_subscriber() -> None:
    plan = subscribers.Plan(rows=2, num_jobs=2, max_tokens=8, rounds=1, subscribers=3)
    runs = subscribers.measure(plan)["runs"]
    assert [run["subscribers"] for run in runs] == ["none", "3 stuck", "3 slow", "3 flapping"]
    assert all(0 < run["slowest"] <= run["tokens/s"] <= run["fastest"] for run in runs)


def test_a_burst_of_jobs_waits_behind_each_kind_of_flood() -> None:
    plan = fairness.Plan(rows=2, num_jobs=4, max_tokens=8, num_flood=12, floods=(0, 60), rounds=1)
    share, alone, behind = fairness.measure(plan)["runs"]
    assert (share["p99 over its share's"], behind["the burst"]) == (1, "behind 12 jobs of 60 tokens")
    assert alone["the burst"] == "alone, all rows"
    assert 0 < behind["first begins, s"] <= behind["wait p99 s"]


def test_functions_are_counted_from_their_definition_to_their_last_line() -> None:
    parts = {part["part"]: part for part in code_size.measure()["parts"]}
    assert parts["engine"]["functions"] < parts["worker"]["functions"]
    own = {one.name: one.num_lines for one in code_size.functions(Path(code_size.__file__))}
    assert own["tables"] == 4


@pytest.mark.slow
def test_readers_get_their_tokens_by_the_client_and_through_the_gateway() -> None:
    plan = gateway_tokens.Plan(rows=(2,), jobs_a_row=2, max_tokens=4, rounds=2)
    (run,) = gateway_tokens.measure(plan)["runs"]
    assert (run["rows"], run["streams"]) == (2, 4)
    assert 0 < run["smallest share"] <= run["share"] <= run["largest share"]


def test_readers_are_measured_while_they_wait_and_while_they_read() -> None:
    plan = readers.Plan(streams=(50,), settle_s=1, waiting_s=1, running_s=1)
    report = readers.measure(plan)
    assert [run["by"] for run in report["runs"]] == list(readers.WAYS)
    assert [run["events lost"] for run in report["runs"]] == [0, 0]
    (table,) = readers.tables(report)
    assert len(table.rows) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", list(readers.WAYS))
def test_ten_thousand_readers_take_few_connections_and_lose_nothing(way: str) -> None:
    run = readers.read_by(way, 10_000, readers.Plan(settle_s=1, waiting_s=1, running_s=10))
    assert int(run["connections"]) <= 100
    assert run["events lost"] == 0


@pytest.mark.slow
def test_the_gateway_is_measured_in_all_that_it_does() -> None:
    plan = gateway.Plan(
        streams=((4, 1), (4, 2)),
        orphans=3,
        orphan_rounds=1,
        paced_rounds=2,
        fast_events=40,
        first_tokens=3,
        submissions=5,
    )
    report = gateway.measure(plan)
    assert [run["events lost"] for run in report["streams"]] == [0, 0]
    assert report["recoveries"]["events lost or repeated"] == 0
    assert report["submissions"]["requests/s"] > 0
    assert len(list(gateway.tables(report))) == 4


def test_webhooks_are_timed_alone_and_beside_a_host_that_does_not_answer() -> None:
    runs = webhooks.measure(webhooks.Plan(num_jobs=20, jobs_per_s=100))["runs"]
    assert [run["beside"] for run in runs] == ["nothing", "a dead host"] * 2
    assert all(0 <= run["p50, ms"] <= run["longest, ms"] for run in runs)


def test_parsing_is_timed_for_every_kind_of_output() -> None:
    report = parsers.measure(parsers.Plan(num_tokens=200, rounds=2))
    (table,) = parsers.tables(report)
    assert len(table.rows) == 6
    assert all(us > 0 for us in report["us_a_token"].values())
