"""Every kernel compiles for cards that need not be here, and stays within what a processor of them has."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.report import ROOT

#: Prints the forms of the kernels by which one token and up to five attend, beside each other in a batch.
FORMS = """
import torch
from benchmarks.compiled import form
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.kernels.gpu.attention import launches
from llama_herd.model.attention_inputs import Scoring

for num_rows in range(1, 6):
    seen = Batch.from_chunks([Chunk((row,), 7, [3], 1) for row in range(num_rows)]).seen
    q, cached = torch.zeros(num_rows, 4, 64), torch.zeros(2, 4, 5, 64, 64)
    print([form(launch) for launch in launches(q, cached, seen, q, 4, Scoring(0.1))])
"""


def compiled(*arguments: str) -> str:
    """What a process prints in which kernels are compiled, and not interpreted."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed: make test-kernels")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_attention_is_compiled_once_for_any_number_of_rows() -> None:
    """What the host sends of them lies in one tensor, row by row, and is not aligned."""
    forms = compiled("-c", FORMS).splitlines()
    assert len(forms) == 5
    assert len(set(forms)) == 1


@pytest.mark.timeout(600)
def test_no_kernel_spills_much_and_all_have_room() -> None:
    """On the card with the least room; `make check` does it for the default type alone."""
    found = compiled("-m", "benchmarks.gpu_kernels", "--check", "sm_86")
    assert "GPU kernels compiled for sm_86" in found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_kernel_spills_much_on_any_card() -> None:
    found = compiled("-m", "benchmarks.gpu_kernels", "--check")
    assert "sm_80, sm_86, sm_89, sm_90, sm_100, sm_120" in found
