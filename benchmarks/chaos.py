"""How long jobs stand still after each fault, and whether anything is lost.

    python -m benchmarks.chaos SCHEDULE [--minutes M] [--write]

The schedules lie in src/llama_herd/chaos/schedules. Exit code 0 when all was done and no law was broken. A
run that ends early, also by Ctrl-C, reports as far as it came.
"""

import argparse
from collections.abc import Iterator

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, for_readers, keep
from llama_herd.chaos.faults.catalogue import FAULTS
from llama_herd.chaos.plan import ChaosPlan, planned_strikes
from llama_herd.chaos.run import run_chaos
from llama_herd.chaos.screen import progress_display, show_report

NUM_JOBS, MAX_TOKENS, SEED = 100, 150, 0


def tables(report: Report) -> Iterator[Table]:
    """Outcomes of the jobs, how long a fault held up those that it met, and the resources in use."""
    names = ("strikes", "jobs", "tokens", "resumed", "lost", "duplicate", "compared")
    minutes = round(report["seconds"] / 60, 1)
    bound = "none" if report["bound"] is None else f"{report['bound']:.1%}"
    row = [minutes, *(report[name] for name in names), bound]
    title = f"Laws broken: {len(report['violations'])}"
    if report["cut_short"]:
        title += f"; cut short by {report['cut_short']}"
    yield Table(["minutes", *names, "3/N"], [row], title)
    if faults := list(_faults(report)):
        yield Table(["fault", "strikes", "jobs met", "p50 s", "p99 s", "longest s"], faults)
    if trends := [list(trend.values()) for trend in report["trends"]]:
        yield Table(["held by", "first", "median", "last", "most"], trends)


def _faults(report: Report) -> Iterator[list[str | float]]:
    """The faults in the order of their list; without times if no job was met."""
    lines = {line["fault"]: line for line in report["faults"]}
    for name in filter(lines.__contains__, FAULTS):
        line = lines[name]
        times = ("" if line[key] is None else line[key] for key in ("p50_s", "p99_s", "max_s"))
        yield [f"`{name}`", line["strikes"], line["met"], *times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("schedule")
    parser.add_argument("--minutes", type=float, default=0.0, help="again until so much time is over")
    parser.add_argument("--write", action="store_true", help="keep the report and the page's tables")
    arguments = parser.parse_args()
    plan = ChaosPlan(planned_strikes([], arguments.schedule), NUM_JOBS, MAX_TOKENS, SEED, arguments.minutes)
    with progress_display() as tell:
        report = run_chaos(plan, tell)
    show_report(report)
    if arguments.write:
        found = {"benchmark": "chaos", "schedule": arguments.schedule, "seed": SEED} | report.to_dict()
        written = found | {"conditions": conditions()}
        keep(written, for_readers(written, tables(written)))
    raise SystemExit(report.exit_code)


if __name__ == "__main__":
    main()
