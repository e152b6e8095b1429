"""The table of all results: ours, the floor, and each peer beside it. Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.step import OK
from llama_herd.errors import BadInput

HEAD = ("", "case", "ours", "floor", "of floor", "peer", "peer's", "ours is better by")
NONE = "–"
#: Conditions that readers want to know, and outcomes of tests that need no word.
SHOWN = ("nvidia-smi", "python", "torch", "triton", "transformers", "celery")
WELL = ("passed", "skipped")


def report(journals: Sequence[Journal]) -> str:
    """The table, the notes on it, how steps ended, and the conditions that it was measured under."""
    measurements = latest(journals)
    rows = [HEAD, tuple("---" for _ in HEAD), *table_rows(measurements)]
    table = [f"| {' | '.join(row)} |" for row in rows]
    is_rehearsed = any(one["is_rehearsed"] for journal in journals for one in journal.entries("run"))
    warning = ["Rehearsed on a tiny model: these figures say only that everything runs.", ""] * is_rehearsed
    ends = [line for journal in journals for line in (*_laws(journal), *_kernels(journal), *_ends(journal))]
    return "\n".join([*warning, *table, "", *_notes(measurements), *ends, *_conditions(journals)])


def latest(journals: Sequence[Journal]) -> list[Measurement]:
    """The last measurement of each system in each case, workload by workload."""
    found = {(m.workload, m.case, m.system): m for journal in journals for m in journal.measurements}
    return sorted(found.values(), key=lambda m: (m.workload, m.case))


def print_report(folders: Sequence[Path]) -> int:
    """Print the report of these runs. Raises BadInput for a folder without one."""
    journals = [Journal(folder) for folder in folders]
    if missing := [str(one.path) for one in journals if not one.path.exists()]:
        raise BadInput(f"no {', '.join(missing)}. Fix: name the folders that runs have written")
    print(report(journals))
    return 0


def table_rows(measurements: list[Measurement]) -> Iterator[tuple[str, ...]]:
    """A row for each case and peer; one for a case that has no peer, or that only a peer has run."""
    cases = dict.fromkeys((m.workload, m.case) for m in measurements)
    for case in cases:
        of_case = [m for m in measurements if (m.workload, m.case) == case]
        ours = next((m for m in of_case if m.system == OURS), None)
        peers = [m for m in of_case if m.system != OURS]
        for cells in [_peer_cells(ours, peer) for peer in peers] or [(NONE, NONE, NONE)]:
            yield (*case, *_our_cells(ours), *cells)


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


def _laws(journal: Journal) -> Iterator[str]:
    laws = journal.entries("law")
    if laws:
        failed = [
            f"{one['test'].rpartition('::')[2]} ({one['outcome']})"
            for one in laws
            if one["outcome"] not in WELL
        ]
        yield f"- Laws: {len(laws) - len(failed)} of {len(laws)} hold. {'; '.join(failed)}".rstrip()


def _kernels(journal: Journal) -> Iterator[str]:
    """Each kernel's worst and best bandwidth, and where it was wrong."""
    entries = journal.entries("kernel")
    for name in dict.fromkeys(one["kernel"] for one in entries):
        own = [one for one in entries if one["kernel"] == name]
        wrong = "; ".join(one["case"] for one in own if not one["is_right"])
        rates = [f"{one['GB_s']:,.0f}" for one in own if "GB_s" in one]
        said = f"{', '.join(rates)} GB/s" if rates else f"{len(own)} cases"
        yield f"- Kernel {name}: {said}{f'; WRONG at {wrong}' if wrong else ''}."


def _ends(journal: Journal) -> Iterator[str]:
    ends = journal.ends.items()
    bad = [f"{name} ({outcome})" for name, outcome in ends if outcome != OK and "skipped" not in outcome]
    if bad:
        yield f"- Not measured: {'; '.join(bad)}."


def _conditions(journals: Sequence[Journal]) -> Iterator[str]:
    for journal in journals:
        runs, found, ceilings = journal.entries("run"), journal.entries("conditions"), journal.ceilings
        name = runs[-1]["run"] if runs else journal.folder.name
        facts = ", ".join(f"{key} {found[-1][key]}" for key in SHOWN if found and found[-1].get(key))
        commit = (runs[-1]["commit"] if runs else "") or (found[-1].get("commit") if found else "")
        yield f"- Run {name}: {facts}, commit {commit}. {_ceilings(ceilings) if ceilings else 'No ceilings'}."


def _ceilings(ceilings: Ceilings) -> str:
    scales = {"bytes_per_s": (1e9, "GB/s"), "flop_per_s": (1e12, "TFLOP/s"), "init_s": (1, "s")}
    parts = []
    for field in fields(ceilings):
        suffix = next(suffix for suffix in scales if field.name.endswith(suffix))
        divisor, unit = scales[suffix]
        parts.append(f"{field.name.split('_')[0]} {getattr(ceilings, field.name) / divisor:,.3g} {unit}")
    return ", ".join(parts)
