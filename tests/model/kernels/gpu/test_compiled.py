"""Every kernel compiles for an H100, whatever card is here, and stays within what a processor of it has."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.measured import ROOT

#: Registers of a thread, and bytes of shared memory of a program.
MOST_REGISTERS, MOST_SHARED_BYTES = 255, 232_448

#: Prints the forms of the kernels by which one token and up to five attend, beside each other in a batch.
FORMS = """
import torch
from benchmarks.compiled import form
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.kernels.gpu.attention import launches
from llama_herd.model.kernels.scoring import Scoring

for num_rows in range(1, 6):
    seen = Batch.of([Chunk((row,), 7, [3], 1) for row in range(num_rows)]).seen
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
    assert not done.returncode, done.stderr[-4000:]
    return done.stdout


def test_attention_is_compiled_once_for_any_number_of_rows() -> None:
    """What the host sends of them lies in one tensor, row by row, and is not aligned."""
    forms = compiled("-c", FORMS).splitlines()
    assert len(forms) == 5
    assert len(set(forms)) == 1


@pytest.mark.timeout(900)
def test_no_kernel_spills_and_all_have_room() -> None:
    kernels = json.loads(compiled("-m", "benchmarks.gpu_kernels", "--json"))
    assert len(kernels) > 110
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["registers"] <= MOST_REGISTERS, kernel
        assert kernel["shared_bytes"] <= MOST_SHARED_BYTES, kernel
        assert kernel["programs"] >= 1, kernel
        if kernel["kernel"].startswith(("attend_split", "multiply")):
            assert kernel["wide_loads"], kernel
            assert kernel["tensor_products"] or "float32" in kernel["kernel"], kernel
