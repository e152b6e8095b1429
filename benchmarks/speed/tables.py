"""The report for readers: a table a file, with what each contender reached and how we stand."""

from collections.abc import Iterator
from typing import Any

from benchmarks.measured import Report, Table, figure
from benchmarks.speed.busy import NUM_BUSY
from benchmarks.speed.contender import OURS
from benchmarks.speed.rounds import CELLS

#: More cores than this that something else kept busy make a row doubtful.
QUIET_CORES = 0.1


def tables(report: Report) -> Iterator[Table]:
    for run in report["runs"]:
        head = [f"{run['shape']} {run['preset']}", *(cell.name for cell in CELLS), "first token s", "peak GB"]
        rows = [_speeds(one) for one in run["contenders"]]
        yield Table(head, [*rows, *_standing(run)], "Tokens a second")
    if not report["busy"]:
        return
    yield Table(
        ["file", "GB", "first token s", "weights s", "a worker's memory for it, in files"],
        [_of_file(run) for run in report["runs"]],
        "Weights: their part of the first token. Memory: more than with the bundled model, but for the cache",
    )
    head = ["ms a step", *(f"beside {number} busy processes" for number in NUM_BUSY)]
    yield Table(head, [_busy(one) for one in report["busy"]], "8 rows of the first file")


def readme_table(report: Report) -> Table:
    """Ours on each file, and as a multiple of each peer in its best mode."""
    rows: list[list[str | float]] = []
    for run in report["runs"]:
        speeds = {one["contender"]: one["tokens_per_s"] for one in run["contenders"]}
        ours = speeds.pop(OURS.name)
        rows.append([f"{run['shape']} {run['preset']}", *(ours[cell.name] or "-" for cell in CELLS)])
        for peer in sorted({name.split(",")[0] for name in speeds}):
            modes = [speed for name, speed in speeds.items() if name.split(",")[0] == peer]
            best = {cell.name: max(mode[cell.name] or 0 for mode in modes) for cell in CELLS}
            if any(best.values()):
                rows.append([f"× {peer}", *(_ratio(ours[cell.name], best[cell.name]) for cell in CELLS)])
    return Table(["tokens/s", *(cell.name for cell in CELLS)], rows)


def first_token(report: Report) -> str:
    """How soon the first token comes of the largest file in blocks."""
    run = max((run for run in report["runs"] if run["preset"] != "BF16"), key=lambda run: run["bytes"])
    name, size_gb, start_s, weights_s, *_ = map(figure, _of_file(run))
    return (
        f"The first token of {name}, {size_gb} GB, comes {start_s} s after the start of the process. Its\n"
        f"weights take {weights_s} s of that."
    )


def _of_file(run: dict[str, Any]) -> list[str | float]:
    ours = _ours(run)
    name, num_bytes = f"{run['shape']} {run['preset']}", run["bytes"]
    times_s = (ours["start_s"] or "-", ours["facts"].get("weights_s", "-"))
    return [name, num_bytes / 1e9, *times_s, run["worker_bytes_over_file"]]


def _ours(run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in run["contenders"] if one["contender"] == OURS.name)
    return found


def _busy(one: dict[str, Any]) -> list[str | float]:
    steps_s = one["step_s"].values()
    return [one["contender"], *("-" if step_s is None else 1000 * step_s for step_s in steps_s)]


def _speeds(one: dict[str, Any]) -> list[str | float]:
    """A row of tokens a second; of a contender that died, of what."""
    noise = f" (others took {one['others_cores']:.1f} cores)" if one["others_cores"] > QUIET_CORES else ""
    cells = [one["tokens_per_s"][cell.name] or "-" for cell in CELLS]
    name = f"{one['contender']}{noise}" + (f": {one['death']}" if one["death"] else "")
    peak_bytes = one["peak_bytes"]
    return [name, *cells, one["start_s"] or "-", peak_bytes / 1e9 if peak_bytes else "-"]


def _standing(run: dict[str, Any]) -> Iterator[list[str | float]]:
    """Ours in percent of the floor, and as a multiple of the best peer in each cell."""
    ours = _ours(run)["tokens_per_s"]
    floors = run["floor_tokens_per_s"]
    yield [
        "percent of the floor",
        *(_ratio(ours[cell.name], floors[cell.name], 100) for cell in CELLS),
        "",
        "",
    ]
    peers = [one for one in run["contenders"] if one["contender"] != OURS.name]
    if peers:
        best = {cell.name: max(one["tokens_per_s"][cell.name] or 0 for one in peers) for cell in CELLS}
        yield ["times the best peer", *(_ratio(ours[cell.name], best[cell.name]) for cell in CELLS), "", ""]


def _ratio(own: float | None, other: float, unit: float = 1) -> str | float:
    return unit * own / other if own and other else "-"
