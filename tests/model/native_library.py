"""The native library of an instruction set, if this machine grants it."""

from functools import cache
from pathlib import Path

import pytest

from llama_herd.model.kernels import build
from llama_herd.model.kernels.instruction_set import AVX_VNNI, INSTRUCTION_SETS, InstructionSet
from llama_herd.model.kernels.native import Kernels, load_library

#: For all but products of bytes, in which alone a library for AVX-VNNI is another than one for AVX2.
DISTINCT_SETS = tuple(set for set in INSTRUCTION_SETS if set is not AVX_VNNI)


def find(folder: Path, set: InstructionSet) -> Path | None:
    """The newest whole library of today's sources for an instruction set."""
    return next((path for path, complaint in build._complaints(folder, set) if not complaint), None)


@cache
def kernels_of(set: InstructionSet, folder: Path) -> Kernels:
    """Skips the test on a machine without it. Loading tries all that is in it, so each is loaded once."""
    if set.complaint:
        pytest.skip(f"{set.name}: {set.complaint}")
    path = find(folder, set)
    assert path is not None
    return load_library(set, path)
