"""Node, and the packages of a folder: by default of the examples in JavaScript."""

import fcntl
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"

needs_node = pytest.mark.skipif(not all(map(shutil.which, ("node", "npm"))), reason="no node or no npm")


def bring_packages(folder: Path = FOLDER) -> None:
    """What the lock file names, brought when it is not there yet. Skips the test if it cannot be had.

    One process of the tests brings them, and the others wait for it.
    """
    with (folder / "package-lock.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _bring_packages(folder)


def _bring_packages(folder: Path) -> None:
    lock, brought = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    if brought.exists() and brought.stat().st_mtime > lock.stat().st_mtime:
        return
    ask = partial(_npm, "ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund")
    done = ask()
    if done.returncode:
        if _npm("ping").returncode:
            pytest.skip("no npm packages: the registry is out of reach")
        done = ask()  # it was for a moment
    assert done.returncode == 0, done.stderr


def _npm(*arguments: str) -> subprocess.CompletedProcess[str]:
    options = ["--fetch-retries=0", "--fetch-timeout=20000", "--loglevel=error"]
    return subprocess.run(["npm", *arguments, *options], capture_output=True, text=True, check=False)
