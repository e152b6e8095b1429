"""The table of all results: ours, the floor, and each peer beside it. Markdown, for people and the README."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.results import Results
from benchmarks.gpu.scale import DRY
from llama_herd.errors import BadInput

HEAD = ("", "case", "ours", "floor", "of floor", "peer", "peer's", "ours is better by")
NONE = "–"

START, END = "<!-- gpu -->", "<!-- /gpu -->"


def report(results: Results) -> str:
    """The table, the notes on it and the conditions that it was measured under."""
    rows = [HEAD, tuple("---" for _ in HEAD), *table_rows(results.latest)]
    table = [f"| {' | '.join(row)} |" for row in rows]
    is_dry = any(call.scale == DRY.name for call in results.calls)
    warning = ["A dry run on a tiny model: these figures say only that everything runs.", ""] * is_dry
    return "\n".join([*warning, *table, "", *_notes(results.latest), *_conditions(results)])


def table_rows(measurements: list[Measurement]) -> Iterator[tuple[str, ...]]:
    """A row for each case and peer; one for a case that has no peer, or that only a peer has run."""
    cases = dict.fromkeys((m.workload, m.case) for m in measurements)
    for case in cases:
        of_case = [m for m in measurements if (m.workload, m.case) == case]
        ours = next((m for m in of_case if m.system == OURS), None)
        peers = [m for m in of_case if m.system != OURS]
        for cells in [_peer_cells(ours, peer) for peer in peers] or [(NONE, NONE, NONE)]:
            yield (*case, *_our_cells(ours), *cells)


def write_into(path: Path, text: str) -> None:
    """Put a text between the marks of a file. Raises BadInput when it has no such marks."""
    before, start, rest = path.read_text().partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise BadInput(
            f"{path} has no line {START} with {END} after it. Fix: add them where the table belongs"
        )
    path.write_text(f"{before}{start}\n{text}\n{end}{after}")


def _our_cells(ours: Measurement | None) -> tuple[str, str, str]:
    if ours is None:
        return NONE, NONE, NONE
    floor = NONE if ours.floor is None else _amount(ours.floor, ours.unit)
    percent = NONE if ours.percent_of_floor is None else f"{ours.percent_of_floor:.0f} %"
    return _amount(ours.value, ours.unit), floor, percent


def _peer_cells(ours: Measurement | None, peer: Measurement) -> tuple[str, str, str]:
    ratio = NONE if ours is None else f"{ours.times_better_than(peer):.2f} x"
    return peer.system, _amount(peer.value, peer.unit), ratio


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _notes(measurements: list[Measurement]) -> Iterator[str]:
    notes = dict.fromkeys((m.system, m.note) for m in measurements if m.note)
    for note in notes:
        workloads = dict.fromkeys(m.workload for m in measurements if (m.system, m.note) == note)
        yield f"- {', '.join(workloads)}, {': '.join(note)}."


def _conditions(results: Results) -> Iterator[str]:
    """Ceilings and conditions of each call, those that are equal to the call's before left out."""
    before: dict[str, object] = {}
    for number, call in enumerate(results.calls, 1):
        new = {name: value for name, value in call.conditions.items() if before.get(name) != value}
        facts = ", ".join(f"{name} {value}" for name, value in new.items())
        done = ", ".join(dict.fromkeys(m.workload for m in call.measurements)) or "nothing"
        yield f"- Call {number} ({call.scale}: {done}). {_ceilings(call.ceilings)}. {facts or 'As before'}."
        before = call.conditions


def _ceilings(ceilings: Ceilings) -> str:
    scales = {"bytes_per_s": (1e9, "GB/s"), "flop_per_s": (1e12, "TFLOP/s"), "init_s": (1, "s")}
    parts = []
    for field in fields(ceilings):
        suffix = next(suffix for suffix in scales if field.name.endswith(suffix))
        divisor, unit = scales[suffix]
        parts.append(f"{field.name.split('_')[0]} {getattr(ceilings, field.name) / divisor:,.3g} {unit}")
    return ", ".join(parts)
