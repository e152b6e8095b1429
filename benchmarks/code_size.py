"""Functions and lines of each part of the code, read from its syntax trees.

    python -m benchmarks.code_size [--write]

A function's lines run from `def` to its last, docstring included. A function inside another counts, too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.harness import Benchmark, NoPlan, main
from benchmarks.report import ROOT, Row, Table

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


def size(part: str, files: list[Path]) -> Row:
    """Figures of one part; empty files do not count."""
    file_lines = [num_lines for path in files if (num_lines := len(path.read_text().splitlines()))]
    found = [function for path in files for function in functions(path)]
    lengths = [function.num_lines for function in found]
    longest = max(found, key=lambda function: function.num_lines)
    return {
        "part": part,
        "files": len(file_lines),
        "lines": sum(file_lines),
        "median file": round(median(file_lines)),
        "longest file": max(file_lines),
        "functions": len(found),
        "median function": round(median(lengths)),
        "p90 function": round(quantiles(lengths, n=10, method="inclusive")[-1]),
        "longest function": longest.num_lines,
        "which": f"`{longest.name}` in {longest.path.relative_to(ROOT)}",
    }


def measure(_: NoPlan) -> Iterator[Table]:
    yield Table([size(part, files) for part, files in PARTS.items()])


BENCHMARK = Benchmark("code_size", __doc__, NoPlan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
