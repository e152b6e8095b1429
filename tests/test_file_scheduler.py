"""A test that kills its process has failed, and all others run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.file_scheduler import FileScheduler

def pytest_xdist_make_scheduler(config, log):
    return FileScheduler(config, log)
"""
DEADLY = """
import os

def test_dies():
    os._exit(1)

def test_after():
    pass
"""
HARMLESS = """
def test_one():
    pass

def test_two():
    pass
"""


@pytest.mark.long
def test_one_that_dies_is_named_and_all_others_run(tmp_path: Path) -> None:
    files = {"conftest": CONFTEST, "test_a": DEADLY, "test_b": HARMLESS, "test_c": HARMLESS, "test_d": DEADLY}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert "2 failed, 6 passed" in ran.stdout, ran.stdout + ran.stderr
    for name in ("test_a", "test_d"):
        assert f"crashed while running '{name}.py::test_dies'" in ran.stdout
