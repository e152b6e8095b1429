"""What every benchmark is built of: options from its plan, turns, and what work takes."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from benchmarks import harness
from benchmarks.harness import Benchmark, in_turns, main, merged, percentile
from benchmarks.meter import Meter
from benchmarks.report import Table


@dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (1, 2)
    rounds: int = 3
    is_fast: bool = False


def measure(plan: Plan) -> Iterator[Table]:
    yield Table([{"rows": number, "rounds": plan.rounds} for number in plan.rows])


BENCHMARK = Benchmark("example", "An example.", Plan(), measure)


def test_the_fields_of_a_plan_are_options_and_the_command_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["example", "--rows", "7", "--is-fast"])
    main(BENCHMARK)
    said = capsys.readouterr().out
    assert "| 7 | 3 |" in said
    assert "`python -m benchmarks.example --rows 7 --is-fast --write`" in said


def test_parts_of_a_benchmark_have_options_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [replace(BENCHMARK, part=name, plan=Plan(rounds=n)) for n, name in enumerate(("one", "two"), 5)]
    monkeypatch.setattr(sys, "argv", ["example", "two", "--rows", "8"])
    main(*parts)
    assert "| 8 | 6 |" in capsys.readouterr().out


def test_each_other_round_goes_backwards_and_warm_ones_do_not_count() -> None:
    seen: list[str] = []

    def way(name: str) -> int:
        seen.append(name)
        return len(seen)

    found = in_turns({"a": lambda: way("a"), "b": lambda: way("b")}, 2, warm=1)
    assert "".join(seen) == "baabba"
    assert found == {"a": [3, 6], "b": [4, 5]}


def test_rounds_are_merged_by_their_names() -> None:
    assert merged([{"a": 1, "b": 2}, {"a": 3, "b": 4}]) == {"a": [1, 3], "b": [2, 4]}


def test_percentiles_lie_between_the_values() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([float(number) for number in range(101)], 95) == 95.0
    assert harness.percentiles_ms([0.001, 0.003], "lag ") == {
        "lag p50": 2.0,
        "lag p95": 2.9,
        "lag p99": 2.98,
    }


def test_a_meter_tells_this_processs_time_from_the_clocks() -> None:
    spent = Meter().spent(lambda: sum(range(2_000_000)))
    assert spent.own_cpu_s > 0
    assert spent.wall_s > 0
    assert spent.redis_cpu_s == 0
