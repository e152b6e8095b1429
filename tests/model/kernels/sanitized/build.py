"""A plugin of pytest: native libraries are compiled with sanitizers, and AMX is computed in software.

A process that loads them must have been started with their runtimes (`preloaded`).
"""

import subprocess
from pathlib import Path

from llama_herd.model.kernels import build
from llama_herd.model.kernels.instruction_set import AMX, AVX512_BF16, INSTRUCTION_SETS

SANITIZERS = (
    *("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined,float-cast-overflow"),
    "-fno-sanitize-recover=all",
)
AMX_IN_SOFTWARE = Path(__file__).with_name("amx_in_software.h")


def preloaded() -> dict[str, str]:
    """Variables with which a process is started that loads such a library. What others leak is theirs."""
    commands = [(build.COMPILER, f"-print-file-name=lib{name}.so") for name in ("asan", "ubsan", "stdc++")]
    paths = [subprocess.check_output(command, text=True).strip() for command in commands]
    return {
        "LD_PRELOAD": ":".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def pytest_configure() -> None:
    flags = tuple(flag for flag in build._FLAGS if flag != "-O2")
    vars(build)["_FLAGS"] = (*flags, *SANITIZERS)
    if not AVX512_BF16.complaint:
        flags = (*AVX512_BF16.compiler_flags, "-include", str(AMX_IN_SOFTWARE))
        object.__setattr__(AMX, "needs", AVX512_BF16.needs)  # all who ask for the set have this object
        object.__setattr__(AMX, "compiler_flags", flags)
    vars(build)["INSTRUCTION_SETS"] = tuple(set for set in INSTRUCTION_SETS if not set.complaint)
