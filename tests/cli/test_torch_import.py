"""The collector of garbage rests while torch is imported, and never looks at what that has made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORTING = """
import gc
from llama_herd.cli.signals import load_torch
from llama_herd.errors import BadInput

def num_looks():
    return sum(generation["collections"] for generation in gc.get_stats())

before = num_looks()
try:
    load_torch()
    print(num_looks() - before, "looks")
    print("much" if gc.get_freeze_count() > 100_000 else "little", "is left out")
except BadInput as error:
    print(error)
print(gc.isenabled())
"""

#: Many objects that a collector has to look at.
MANY = "made = [([],) for _ in range(100_000)]\n"


def said(folder: Path, torch: str) -> str:
    """What is said of importing this in torch's place."""
    (folder / "torch.py").write_text(torch)
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-c", IMPORTING]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout


def test_what_torch_makes_is_not_looked_through(tmp_path: Path) -> None:
    assert said(tmp_path, MANY) == "0 looks\nmuch is left out\nTrue\n"


@pytest.mark.long
def test_the_collector_works_after_a_failed_import_too(tmp_path: Path) -> None:
    told = said(tmp_path, f"{MANY}raise ImportError('broken')")
    assert told == "torch cannot be loaded: broken. Fix: install it anew\nTrue\n"
