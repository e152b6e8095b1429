"""How long jobs stand still after each fault, and whether anything is lost.

    python -m benchmarks.chaos SCHEDULE [--minutes M] [--write]

The schedules lie in tests/chaos/harness/schedules. Exit code 0 when all was done and no law was broken. A
run that ends early, also by Ctrl-C, reports as far as it came.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from benchmarks.conditions import conditions
from benchmarks.report import Report, Row, Table, publish
from tests.chaos.harness.faults.catalogue import FAULTS
from tests.chaos.harness.plan import ChaosPlan, planned_strikes
from tests.chaos.harness.report import ChaosReport
from tests.chaos.harness.run import run_chaos
from tests.chaos.harness.screen import progress_display, show_report

NUM_JOBS, MAX_TOKENS, SEED = 100, 150, 0


def tables(report: ChaosReport) -> Iterator[Table]:
    """Outcomes of the jobs, how long a fault held up those that it met, and the resources in use."""
    found = report.to_dict()
    names = ("strikes", "jobs", "tokens", "resumed", "lost", "duplicate", "compared")
    bound = "none" if found["bound"] is None else f"{found['bound']:.1%}"
    minutes = {"minutes": round(found["seconds"] / 60, 1)}
    title = f"Laws broken: {len(found['violations'])}"
    if found["cut_short"]:
        title += f"; cut short by {found['cut_short']}"
    yield Table([{**minutes, **{name: found[name] for name in names}, "3/N": bound}], title)
    if faults := list(_faults(found["faults"])):
        yield Table(faults)
    if trends := found["trends"]:
        heads = ("held by", "first", "median", "last", "most")
        yield Table([dict(zip(heads, trend.values(), strict=True)) for trend in trends])


def _faults(found: list[dict[str, Any]]) -> Iterator[Row]:
    """The faults in the order of their list; without times if no job was met."""
    lines = {line["fault"]: line for line in found}
    for name in filter(lines.__contains__, FAULTS):
        line = lines[name]
        keys = {"p50_s": "p50 s", "p99_s": "p99 s", "max_s": "longest s"}
        times = {head: "" if line[key] is None else line[key] for key, head in keys.items()}
        yield {"fault": f"`{name}`", "strikes": line["strikes"], "jobs met": line["met"], **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("schedule")
    parser.add_argument("--minutes", type=float, default=0.0, help="again until so much time is over")
    parser.add_argument("--write", action="store_true", help="keep the report and the page's tables")
    given = parser.parse_args()
    plan = ChaosPlan(planned_strikes([], given.schedule), NUM_JOBS, MAX_TOKENS, SEED, given.minutes)
    with progress_display() as tell:
        found = run_chaos(plan, tell)
    show_report(found)
    if given.write:
        report = Report("chaos", list(tables(found)), conditions(), found.to_dict(), given.schedule)
        report.keep()
        publish(report.section)
    raise SystemExit(found.exit_code)


if __name__ == "__main__":
    main()
