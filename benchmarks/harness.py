"""The harness: a benchmark is a plan of what varies, and a function that yields the tables of what it found.

    python -m benchmarks.NAME [PART] [--FIELD VALUE ...] [--write]

Each field of the plan that holds words or numbers is an option of the command.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import quantiles
from time import perf_counter
from typing import Any, Generic, TypeVar

import torch

from benchmarks.conditions import conditions
from benchmarks.report import Report, Table, publish

P = TypeVar("P", bound=Any)
T = TypeVar("T")


@dataclass(frozen=True)
class Benchmark(Generic[P]):
    """`name` is that of its module; several parts of one module take their names after it."""

    name: str
    about: str | None
    plan: P
    measure: Callable[[P], Iterable[Table]]
    part: str = ""
    for_readme: Callable[[Report], str] | None = None
    on_keep: Callable[[Report], None] | None = None
    threads: int = 0  # of the processes that are measured; 0: as torch has here
    machine: str = ""  # the processor, where reports of several are kept

    def report(self, plan: P) -> Report:
        made = conditions()
        tables = list(self.measure(plan))
        made["threads"] = self.threads or torch.get_num_threads()  # a benchmark may have set it
        options = " ".join(_changes(self.plan, plan))
        return Report(self.name, tables, made, asdict(plan), self.part, options, self.machine)


@dataclass(frozen=True)
class NoPlan:
    """Of a benchmark in which nothing varies."""


def main(*benchmarks: Benchmark[Any]) -> None:
    """Measure and print; with --write keep the report, and its tables in the page."""
    parser = argparse.ArgumentParser(description=(benchmarks[0].about or "").splitlines()[0])
    if benchmarks[0].part:
        kinds = parser.add_subparsers(dest="part", required=True)
        for one in benchmarks:
            _add_options(kinds.add_parser(one.part), one)
    else:
        _add_options(parser, benchmarks[0])
    given = vars(parser.parse_args())
    part, is_kept = given.pop("part", ""), given.pop("write")
    benchmark = next(one for one in benchmarks if one.part == part)
    report = benchmark.report(replace(benchmark.plan, **given))
    print(report)
    if is_kept:
        report.keep()
        if benchmark.on_keep is not None:
            benchmark.on_keep(report)
        publish(report.section, benchmark.for_readme)


def _add_options(parser: argparse.ArgumentParser, benchmark: Benchmark[Any]) -> None:
    for one in fields(benchmark.plan):
        default = getattr(benchmark.plan, one.name)
        option = f"--{one.name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        elif isinstance(default, str | int | float):
            parser.add_argument(option, type=type(default), default=default, help=f"{default}")
        elif isinstance(default, tuple) and default and isinstance(default[0], str | int | float):
            words = " ".join(map(str, default))
            parser.add_argument(option, type=type(default[0]), nargs="*", default=default, help=words)
    parser.add_argument("--write", action="store_true", help="keep the report and the page's tables")


def _changes(usual: Any, plan: Any) -> Iterator[str]:
    """The options that stand for a plan."""
    for one in fields(plan):
        value = getattr(plan, one.name)
        if value != getattr(usual, one.name):
            words = value if isinstance(value, tuple | list) else () if value is True else (value,)
            yield " ".join((f"--{one.name.replace('_', '-')}", *map(str, words)))


def in_turns(ways: Mapping[str, Callable[[], T]], rounds: int, *, warm: int = 0) -> dict[str, list[T]]:
    """What each way came to in each round, but for the first ones; each other round goes backwards.

    So a machine that slows down does so for all.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(-warm, rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            outcome = ways[name]()
            if number >= 0:
                found[name].append(outcome)
    return found


def merged(rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The numbers of all rounds by their names."""
    return {name: [one[name] for one in rounds] for name in rounds[0]}


def timed_s(act: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    started_s = clock()
    act()
    return clock() - started_s


def percentile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def percentiles_ms(seconds: Sequence[float], name: str = "") -> dict[str, float]:
    """Of 50, 95 and 99 percent; `name` stands before each."""
    return {f"{name}p{one}": round(1000 * percentile(seconds, one), 2) for one in (50, 95, 99)}
