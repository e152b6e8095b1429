"""One tree: every tool sees each file once, and the links at the top are for people alone."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "llama_herd"
LINKS = ("model", "tasks", "worker")
BIN = Path(sys.executable).parent

PAGES = [*ROOT.glob("*.md"), *(page for page in ROOT.glob("docs/**/*.md") if page.name != "measured.md")]


def files_of_git(*patterns: str) -> set[Path]:
    """What is tracked, and what is not ignored; links are no files."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in done.stdout.split("\0") if name)
    return {path for path in paths if path.is_file() and not path.is_symlink()}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository without its links."""
    folder = tmp_path_factory.mktemp("copy")
    for path in files_of_git():
        goal = folder / path.relative_to(ROOT)
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, goal)
    if (ROOT / ".mypy_cache").exists():  # types of two hundred packages, and of the same files
        shutil.copytree(ROOT / ".mypy_cache", folder / ".mypy_cache")
    assert not any((folder / link).exists() for link in LINKS)
    return folder


def make(goal: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `make` there with the packages that are installed here, but the code that lies there."""
    variables = {**os.environ, "PYTHONPATH": str(folder / "src")}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS", "MAKEFLAGS"):
        variables.pop(name, None)
    ready = [path for path in (BIN.parent / ".ready", Path(f"{BIN.parent}-kernels/.ready")) if path.exists()]
    are_made = [word for path in ready for word in ("-o", str(path))]
    return subprocess.run(
        ["make", *are_made, f"VENV={BIN.parent}", goal],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_ruff_looks_at_every_file_and_at_each_once() -> None:
    done = subprocess.run([BIN / "ruff", "check", "--show-files"], cwd=ROOT, capture_output=True, text=True)
    seen = [Path(line) for line in done.stdout.splitlines() if line.endswith(".py")]
    assert sorted(seen) == sorted(files_of_git("*.py"))


def test_the_links_at_the_top_lead_into_the_package() -> None:
    there = [link for link in LINKS if (ROOT / link).is_symlink()]
    assert all((ROOT / link).resolve() == PACKAGE / link for link in there)
    assert not any(path.is_symlink() for path in PACKAGE.rglob("*"))


def named_paths(page: Path) -> Iterator[str]:
    """Paths that a page names in code, with a folder at least; not those that only an old commit has."""
    for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`(?! of commit)", page.read_text()):
        if name.split("/")[0] in {"src", "tests", "benchmarks", "docs", "cli", "chaos", "local", *LINKS}:
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there_without_the_links(page: Path) -> None:
    is_inside = page.parent.name == "decisions" or page.name in (
        "architecture.md",
        "CONTRIBUTING.md",
    )  # they say so
    roots = (PACKAGE, ROOT) if is_inside else (ROOT,)
    paths = [[root / name for root in roots] for name in named_paths(page)]
    missing = [at for at in paths if not any(path.exists() and path.resolve() == path for path in at)]
    assert missing == []


@pytest.mark.program
@pytest.mark.timeout(300)
def test_without_the_links_all_checks_hold(copy: Path) -> None:
    done = make("check", copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_links_the_quick_tests_pass(copy: Path) -> None:
    done = make("quick", copy)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
