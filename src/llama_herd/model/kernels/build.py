"""build: the native kernels, compiled by g++ into a cache folder, and found there again.

    FOLDER/<hash of sources and flags>/<instruction set>.<hash of the compiler's version>.so

Whoever finds a library there needs no compiler, and never one that other sources made.
"""

import fcntl
import os
import stat
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

from llama_herd.errors import BadInput
from llama_herd.model.kernels.instruction_set import INSTRUCTION_SETS, InstructionSet, is_known_machine

SOURCES = Path(__file__).parent / "native"
COMPILER = "g++"
_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    "-ffp-contract=off",  # where products are added in one step, the sources say so
    *("-fno-exceptions", "-fno-rtti", "-fno-gnu-unique", "-Wl,--as-needed", "-Wl,-Bsymbolic"),
)
_COMPILER_TIMEOUT_S = 300


def build(folder: Path) -> list[Path]:
    """Compile what is not there yet, for all instruction sets: none of them has to be this machine's.

    Raises BadInput if there is no compiler, if it fails, or if the folder cannot be written.
    """
    version = _compiler_version()
    place = _folder_of(folder)
    try:
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second finds all there
            return [_compiled(place / f"{set.name}.{version}.so", set) for set in INSTRUCTION_SETS]
    except OSError as error:
        raise BadInput(f"native kernels cannot be kept in {folder}: {error}. Fix: HERD_KERNELS_DIR") from None


def find(folder: Path, set: InstructionSet) -> Path | None:
    """The newest library of today's sources for an instruction set.

    Raises BadInput when others than we and root may have put it there.
    """
    found = sorted(_folder_of(folder).glob(f"{set.name}.*.so"), key=lambda path: path.stat().st_mtime)
    if not found:
        return None
    for place in (_folder_of(folder), found[-1]):
        state = place.stat()
        if state.st_uid not in (0, os.getuid()) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BadInput(f"others may write to {place}. Fix: chmod go-w, or build again elsewhere")
    return found[-1]


def best_library(folder: Path) -> tuple[InstructionSet, Path]:
    """The library of the best instruction set that this machine has. Raises BadInput when there is none."""
    if not is_known_machine():
        raise BadInput("there are none for this kind of machine")
    usable = [set for set in INSTRUCTION_SETS if not set.complaint]
    if not usable:
        raise BadInput(INSTRUCTION_SETS[-1].complaint)
    for set in usable:
        path = find(folder, set)
        if path is not None:
            return set, path
    raise BadInput(f"not built in {folder}. Fix: herd kernels build")


@cache
def _source_key() -> str:
    """Changes with any byte of the sources, and with any flag."""
    key = sha256(repr((_FLAGS, [(set.name, set.compiler_flags) for set in INSTRUCTION_SETS])).encode())
    for path in sorted(SOURCES.iterdir()):
        key.update(f"\n{path.name}\n".encode() + path.read_bytes())
    return key.hexdigest()[:16]


def _folder_of(folder: Path) -> Path:
    return folder / _source_key()


def _compiler_version() -> str:
    try:
        found = subprocess.run([COMPILER, "--version"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadInput(
            f"native kernels need the compiler {COMPILER}: {error}. Fix (Debian): apt install g++"
        ) from None
    return sha256(found.stdout).hexdigest()[:8]


def _compiled(path: Path, set: InstructionSet) -> Path:
    """Compile beside the place and move the library there, so that it is whole for all who look."""
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        library = Path(folder) / path.name
        source = SOURCES / "library.cpp"
        command = [COMPILER, *_FLAGS, *set.compiler_flags, str(source), "-o", str(library)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILER_TIMEOUT_S
        )
        if done.returncode:
            raise BadInput(f"{COMPILER} failed on the kernels for {set.name}:\n{done.stderr.strip()[-4000:]}")
        library.chmod(0o755)
        library.replace(path)
    return path
