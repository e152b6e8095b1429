"""Node, and the packages of a folder: by default of the examples in JavaScript."""

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"

needs_node = pytest.mark.skipif(not all(map(shutil.which, ("node", "npm"))), reason="no node or no npm")

#: What npm says of a request without an answer, or without one that can be trusted.
_OUT_OF_REACH = re.compile(r"request to \S+ failed|network")


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
    done = _install(folder)
    if done.returncode:
        done = _install(folder)  # the registry may have been away for a moment
    if _OUT_OF_REACH.search(done.stderr):
        pytest.skip("no npm packages: the registry is out of reach")
    assert done.returncode == 0, done.stderr


def _install(folder: Path) -> subprocess.CompletedProcess[str]:
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0", "--fetch-timeout=20000"]
    command = ["npm", "ci", "--prefix", str(folder), "--loglevel=error", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)
