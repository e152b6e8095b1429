"""`python -m benchmarks.weights types|starts|workers [--files FOLDER] [--write]`, see the package."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.conditions import conditions
from benchmarks.measured import Report, for_readers, keep
from benchmarks.weights import starts, types, workers

PARTS = {"types": types.tables, "starts": starts.tables, "workers": workers.tables}


def measure(part: str, folder: Path) -> Report:
    if part == "types":
        return types.measure()
    return starts.measure(folder) if part == "starts" else workers.measure(folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weights", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--files", type=Path, help="folder that keeps the files for the next call")
    parser.add_argument("--write", action="store_true", help="keep the report and the page's tables")
    given = parser.parse_args()
    with TemporaryDirectory() as scratch:
        measured = measure(given.part, given.files or Path(scratch))
    report = {"benchmark": "weights", "schedule": given.part, **measured, "conditions": conditions()}
    text = for_readers(report, PARTS[given.part](report))
    print(text)
    if given.write:
        keep(report, text)


if __name__ == "__main__":
    main()
