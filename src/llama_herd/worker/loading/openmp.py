"""The OpenMP runtimes of this process. torch brings one; each further one has threads of its own.

A package may bring one that nobody asked for: gguf loads sentencepiece where that is installed.
"""

import os
import re
from pathlib import Path

#: What is mapped into this process, where the system tells.
MAPS = Path("/proc/self/maps")

#: GCC's, Clang's and Intel's, also as wheels rename them: `libgomp-6a29c32d.so.1.0.0`.
RUNTIME = re.compile(r"lib(?:g|i)?omp\d?(?:-\w+)?\.so")


def openmp_runtimes(maps: Path = MAPS) -> list[str]:
    """The files of all runtimes that are loaded, in the order of their names."""
    if not maps.exists():
        return []
    lines = maps.read_text().splitlines()
    files = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(file for file in files if RUNTIME.match(os.path.basename(file)))
