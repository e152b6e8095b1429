"""Functions and lines of each part of the code, read from its syntax trees.

    python -m benchmarks.code_size [--write]

A function's lines run from `def` to its last, docstring included. A function inside another counts, too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.conditions import conditions
from benchmarks.measured import ROOT, Report, Table, run_command

PACKAGE = ROOT / "src" / "llama_herd"

PARTS = {
    "engine": sorted((PACKAGE / "worker" / "engine").rglob("*.py")),
    **{
        name: sorted((PACKAGE / name).rglob("*.py"))
        for name in ("model", "tasks", "worker", "local", "chaos", "cli")
    },
    **{name: sorted((ROOT / name).rglob("*.py")) for name in ("training", "benchmarks", "tests")},
}


class Function(NamedTuple):
    """A function, and its length."""

    path: Path
    name: str
    num_lines: int


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(path, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)


def size(part: str, files: list[Path]) -> dict[str, Any]:
    """Figures of one part; empty files do not count."""
    file_lines = [num_lines for path in files if (num_lines := len(path.read_text().splitlines()))]
    found = [function for path in files for function in functions(path)]
    lengths = [function.num_lines for function in found]
    longest = max(found, key=lambda function: function.num_lines)
    return {
        "part": part,
        "files": len(file_lines),
        "lines": sum(file_lines),
        "median_file": round(median(file_lines)),
        "longest_file": max(file_lines),
        "functions": len(found),
        "median_function": round(median(lengths)),
        "p90_function": round(quantiles(lengths, n=10, method="inclusive")[-1]),
        "longest_function": longest.num_lines,
        "which": f"`{longest.name}` in {longest.path.relative_to(ROOT)}",
    }


def measure() -> Report:
    parts = [size(part, files) for part, files in PARTS.items()]
    return {"benchmark": "code_size", "conditions": conditions(), "parts": parts}


def tables(report: Report) -> list[Table]:
    parts = report["parts"]
    head = [name.replace("_", " ") for name in parts[0]]
    return [Table(head, [list(part.values()) for part in parts])]


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or "")
