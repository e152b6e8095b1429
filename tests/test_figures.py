"""A figure says at which commit it was measured, and that commit is in the history."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
REPORTS = [*ROOT.glob("benchmarks/results/*.json")]

NAMED = re.compile(r'\bcommit["`:]*\s+["`]?([0-9a-f]{7,40})\b')


@cache
def git(*arguments: str) -> str:
    """What git prints, and nothing where this is no checkout or there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="module")
def history() -> str:
    """All commits of this one and before it, a line each."""
    is_shallow = git("rev-parse", "--is-shallow-repository") != "false"
    if is_shallow or git("rev-parse", "--show-toplevel") != str(ROOT):
        pytest.skip("no checkout with its whole history")
    return "\n" + git("rev-list", "HEAD")


def commits(files: list[Path]) -> Iterator[tuple[Path, str]]:
    for file in files:
        for commit in sorted(set(NAMED.findall(file.read_text()))):
            yield file, commit


@pytest.mark.parametrize(
    "text",
    [
        "load 1.9, commit 0711740.",
        "load 1.9, commit\n0711740.",
        '"commit": "0711740",',
        "| commit `0711740` |",
        "commit 0711740a3c4e5f60718293a4b5c6d7e8f9010203",
    ],
)
def test_a_commit_is_found_however_it_is_written(text: str) -> None:
    (found,) = NAMED.findall(text)
    assert found.startswith("0711740")


@pytest.mark.parametrize("files", [PAGES, REPORTS], ids=["pages", "reports"])
def test_each_commit_under_a_figure_is_in_the_history(history: str, files: list[Path]) -> None:
    named = list(commits(files))
    assert named
    lost = [f"{commit} in {file.relative_to(ROOT)}" for file, commit in named if f"\n{commit}" not in history]
    assert not lost
