"""The table of all results: ours, its share of the floor, and each peer's beside it. Markdown."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks.floors import Format
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.step import OK
from benchmarks.report import PAGE, ROOT, write_section
from llama_herd.errors import BadInput

HEAD = ("", "case")
NONE = "–"
FORMATS = tuple(one.name for one in Format)
#: Between such marks the page has the report of the folders that it names.
SECTION = "benchmarks.gpu"
#: Conditions that readers want to know, and outcomes of tests that need no word.
SHOWN = ("nvidia-smi", "python", "torch", "triton", "transformers", "celery")
WELL = ("passed", "skipped")


def report(journals: Sequence[Journal]) -> str:
    """The table, the notes on it, how steps ended, and the conditions that it was measured under."""
    measurements = latest(journals)
    is_rehearsed = any(one["is_rehearsed"] for journal in journals for one in journal.entries("run"))
    warning = ["Rehearsed on a tiny model: these figures say only that everything runs.", ""] * is_rehearsed
    checks = [line for journal in journals for line in (*_laws(journal), *_kernels(journal))]
    lines = [*_notes(measurements), *checks, *_ends(journals), *_conditions(journals)]
    return "\n".join([*warning, *table(measurements), "", *lines])


def latest(journals: Sequence[Journal]) -> list[Measurement]:
    """The last measurement of each system in each case, workload by workload."""
    found = {(m.workload, m.case, m.system, m.part): m for journal in journals for m in journal.measurements}
    return sorted(found.values(), key=lambda m: (m.workload, m.case))


def print_report(folders: Sequence[Path], *, is_written: bool) -> int:
    """Print the report of these calls, or put it into the page. Raises BadInput for a folder without one."""
    journals = [Journal(folder) for folder in folders]
    if missing := [str(one.path) for one in journals if not one.path.exists()]:
        raise BadInput(f"no {', '.join(missing)}. Fix: name the folders that runs have written")
    print(report(journals))
    if is_written:
        write_section(PAGE, SECTION, for_page(journals))
    return 0


def for_page(journals: Sequence[Journal]) -> str:
    """The table, the command that wrote it, and what there is to say of it."""
    # No choice is switched off, and what explains a figure is in its report.
    shown = (one for one in latest(journals) if not one.system.startswith(f"{OURS}, "))
    measurements = [one for one in shown if one.workload != "steps"]
    folders = [os.path.relpath(journal.folder.resolve(), ROOT) for journal in journals]
    command = f"`python -m benchmarks.gpu report {' '.join(folders)} --write`:"
    laws = [line for journal in journals for line in _laws(journal)]
    lines = (*_notes(measurements), *laws, *_conditions(journals))
    notes = [line[2:] for line in lines if ": kernels: " not in line]
    return "\n".join([*table(measurements), "", " ".join([command, *notes])])


def table(measurements: list[Measurement]) -> list[str]:
    """A row for each case, with a column for each format. Parts of a case stand in one row."""
    formats = list(
        dict.fromkeys(_format(m) for m in sorted(measurements, key=lambda m: FORMATS.index(_format(m))))
    )
    cases = dict.fromkeys((m.workload, _case(m)) for m in measurements)
    rows = [(*HEAD, *formats), ("---",) * (len(HEAD) + len(formats))]
    for workload, case in cases:
        of_case = [m for m in measurements if (m.workload, _case(m)) == (workload, case)]
        rows.append(
            (workload, case, *(_cell([m for m in of_case if _format(m) == name]) for name in formats))
        )
    return [f"| {' | '.join(row)} |" for row in rows]


def _cell(measurements: list[Measurement]) -> str:
    """Ours, in percent of the floor, and each peer's beside it."""
    parts = dict.fromkeys(m.part for m in measurements)
    said = []
    for part in parts:
        ours, *others = sorted((m for m in measurements if m.part == part), key=lambda m: m.system != OURS)
        name = "" if ours.system == OURS else f"{ours.system} "
        words = [f"{part}: " * bool(part) + name + _amount(ours.value, ours.unit) + _of_floor(ours)]
        words += [
            f"{one.system} {_amount(one.value, one.unit)}"
            + f" ({ours.times_better_than(one):.2f} x)" * (not name)
            for one in others
        ]
        said.append(", ".join(words))
    return "; ".join(said) or NONE


def _of_floor(measured: Measurement) -> str:
    percent = measured.percent_of_floor
    if percent is None or measured.floor is None:
        return ""
    return f" ({percent:.0f} % of {_amount(measured.floor, '').strip()})"


def _format(measured: Measurement) -> str:
    return measured.case.partition(", ")[0]


def _case(measured: Measurement) -> str:
    return measured.case.partition(", ")[2]


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


def _ends(journals: Sequence[Journal]) -> Iterator[str]:
    """What none of the calls has measured: how each step ended last."""
    ends = {name: outcome for journal in journals for name, outcome in journal.ends.items()}
    bad = [f"{name} ({outcome})" for name, outcome in ends.items() if outcome != OK]
    if bad:
        yield f"- Not measured: {'; '.join(bad)}."


def _conditions(journals: Sequence[Journal]) -> Iterator[str]:
    """Runs of the same conditions in one line."""
    runs: dict[str, list[str]] = {}
    for journal in journals:
        begun, found, ceilings = journal.entries("run"), journal.entries("conditions"), journal.ceilings
        facts = ", ".join(f"{key} {found[-1][key]}" for key in SHOWN if found and found[-1].get(key))
        commit = (begun[-1]["commit"] if begun else "") or (found[-1].get("commit") if found else "")
        name = begun[-1]["run"] if begun else journal.folder.name
        said = f"{name} at commit {commit}" + (f" ({_ceilings(ceilings)})" if ceilings else "")
        runs.setdefault(facts, []).append(said)
    for facts, names in runs.items():
        yield f"- {'; '.join(names)}{': ' * bool(facts)}{facts}."


def _ceilings(ceilings: Ceilings) -> str:
    scales = {"bytes_per_s": (1e9, "GB/s"), "flop_per_s": (1e12, "TFLOP/s"), "init_s": (1, "s")}
    parts = []
    for field in fields(ceilings):
        suffix = next(suffix for suffix in scales if field.name.endswith(suffix))
        divisor, unit = scales[suffix]
        parts.append(f"{field.name.split('_')[0]} {_amount(getattr(ceilings, field.name) / divisor, unit)}")
    return ", ".join(parts)
