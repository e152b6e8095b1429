"""`python -m benchmarks.speed [NAME] [--quick] [--write]`, see the package."""

import argparse
import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.conditions import conditions
from benchmarks.measured import README, ROOT, Report, for_readers, keep, write_section
from benchmarks.speed.busy import beside_busy
from benchmarks.speed.contender import CONTENDERS, Contender
from benchmarks.speed.files import FILES, QUICK_FILES, RandomFile
from benchmarks.speed.machine import Ceilings
from benchmarks.speed.peers import PEERS
from benchmarks.speed.rounds import CELLS, Outcome, measure_file
from benchmarks.speed.tables import first_token, readme_table, tables
from benchmarks.speed.worker_memory import worker_bytes_over_file

PICTURE = ROOT / "docs" / "speed.svg"
PICTURE_SAYS = "Tokens a second of each engine on each file"

ROUNDS, QUICK_ROUNDS = 5, 2
#: Decoded in each round. A row decodes 128 tokens at most.
STEPS = 3


def measure(
    files: Iterable[RandomFile],
    rounds: int,
    contenders: Sequence[Contender] = CONTENDERS,
    threads: int = len(os.sched_getaffinity(0)),
    *,
    is_quick: bool = False,
) -> Report:
    """A quick one leaves out what a worker takes, and what busy processes do to a step."""
    console = Console(stderr=True, log_path=False)
    console.log("the machine's ceilings")
    ceilings, shapes_done, runs = Ceilings.measure(), set[str](), []
    busy: list[dict[str, Any]] = []
    for file in files:
        there = [one for one in contenders if one.is_there]
        taking_part = [one for one in there if not (one.reads_any_file_alike and file.shape in shapes_done)]
        shapes_done.add(file.shape)
        console.log(f"{file.shape} {file.preset}: writing the file")
        with TemporaryDirectory() as folder:
            path = file.write(Path(folder))
            num_bytes = path.stat().st_size
            console.log(f"{rounds} rounds of {', '.join(one.name for one in taking_part)}")
            outcomes = measure_file(path, taking_part, threads, rounds, STEPS)
            over_file = None
            if not is_quick:
                console.log("a worker's memory")
                over_file = worker_bytes_over_file(path, file.config, threads)
            if not (busy or is_quick):  # the first file says it for all
                console.log("steps beside busy processes")
                busy = beside_busy(path, taking_part, threads)
        runs.append({**_run(file, num_bytes, ceilings, outcomes), "worker_bytes_over_file": over_file})
    return {
        "benchmark": "speed",
        "threads": threads,
        "rounds": rounds,
        "steps": STEPS,
        "ceilings": asdict(ceilings),
        "conditions": conditions(),
        "runs": runs,
        "busy": busy,
    }


def _run(file: RandomFile, num_bytes: int, ceilings: Ceilings, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    floors = ceilings.floors(file)
    return {
        "shape": file.shape,
        "preset": file.preset,
        "bytes": num_bytes,
        "floor_tokens_per_s": {cell.name: cell.num_tokens / cell.floor_s(floors) for cell in CELLS},
        "contenders": [
            {
                **asdict(outcome),
                "others_cores": outcome.others_cores,
                "tokens_per_s": {cell.name: outcome.tokens_per_s(cell) for cell in CELLS},
            }
            for outcome in outcomes
        ],
    }


def draw(report: Report) -> None:
    """Draw docs/speed.svg, where the environment with the peers is there."""
    python = PEERS / "bin" / "python"
    if python.exists():
        command = [python, Path(__file__).with_name("plot.py"), PICTURE]
        subprocess.run(command, input=json.dumps(report), text=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="of a further processor")
    parser.add_argument("--quick", action="store_true", help="one file, two rounds")
    parser.add_argument("--first", type=int, default=len(FILES), metavar="N", help="only the first N files")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of all engines, on each file")
    parser.add_argument("--write", action="store_true", help="keep report, tables and plot")
    given = parser.parse_args()
    report = measure(QUICK_FILES, QUICK_ROUNDS, is_quick=True) if given.quick else _measured(given)
    report |= {"schedule": given.name, "option": "--quick" if given.quick else _options(given)}
    text = for_readers(report, tables(report))
    print(text)
    if given.write:
        keep(report, text)
    if given.write and not given.name:
        draw(report)
        write_section(README, "speed", for_readme(report))


def _measured(given: argparse.Namespace) -> Report:
    return measure(FILES[: given.first], given.rounds)


def _options(given: argparse.Namespace) -> str:
    """Those that are not the usual ones."""
    usual = {"first": len(FILES), "rounds": ROUNDS}
    unusual = {name: getattr(given, name) for name in usual if getattr(given, name) != usual[name]}
    return " ".join(f"--{name} {number}" for name, number in unusual.items())


def for_readme(report: Report) -> str:
    """A table of the ratios, the plot, and what a start takes."""
    picture = f"![{PICTURE_SAYS}](docs/{PICTURE.name})"
    return "\n\n".join([for_readers(report, [readme_table(report)]), picture, first_token(report)])


if __name__ == "__main__":
    main()
