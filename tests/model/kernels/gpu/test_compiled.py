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


@pytest.mark.timeout(900)
def test_no_kernel_spills_and_all_have_room() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed: make test-kernels")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu_kernels", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-4000:]
    kernels = json.loads(done.stdout)
    assert len(kernels) > 110
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["registers"] <= MOST_REGISTERS, kernel
        assert kernel["shared_bytes"] <= MOST_SHARED_BYTES, kernel
        assert kernel["programs"] >= 1, kernel
        if kernel["kernel"].startswith(("attend_split", "multiply")):
            assert kernel["wide_loads"], kernel
            assert kernel["tensor_products"] or "float32" in kernel["kernel"], kernel
