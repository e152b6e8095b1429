"""build: the native kernels, compiled by g++ into a cache folder, and found there again.

    FOLDER/<hash of sources and flags>/<instruction set>.<hash of compiler's version>.<hash of file>.so

Whoever finds a library there needs no compiler, and never finds one that other sources made, that is damaged,
or that others than this user and root can have put there.
"""

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from llama_herd.errors import BadInput
from llama_herd.model.kernels.instruction_set import INSTRUCTION_SETS, InstructionSet, is_known_machine
from llama_herd.model.kernels.trusted_folder import complaint_of_file, trusted_folder

_DIGEST_DIGITS = 32


def libraries(place: Path, stem: str) -> list[Path]:
    """The libraries in a folder, newest first. stem: an instruction set, or with a compiler's version."""
    found = place.glob(f"{stem}.{'?' * _DIGEST_DIGITS}.so")
    return sorted(found, key=lambda path: path.lstat().st_mtime, reverse=True)


def complaint_of(path: Path) -> str:
    """Why a library in a trusted folder must not be loaded; empty if it may be. Reads all of it."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return "is no file"
    return complaint_of_file(path) or ("" if path.name.split(".")[-2] == _digest(path) else "is damaged")


def keep(library: Path, place: Path, stem: str) -> Path:
    """Move a library into a folder, so that it is whole for all who look, also after a power cut."""
    path = place / f"{stem}.{_digest(library)}.so"
    library.chmod(0o755)
    _sync(library)
    library.replace(path)
    _sync(place)
    return path


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:_DIGEST_DIGITS]


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


SOURCES = Path(__file__).parent / "native"
COMPILER = "g++"
_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    "-ffp-contract=off",  # where products are added in one step, the sources say so
    *("-fno-exceptions", "-fno-rtti", "-fno-gnu-unique", "-Wl,--as-needed", "-Wl,-Bsymbolic"),
)
_COMPILER_TIMEOUT_S = 300


class Built(NamedTuple):
    """A library that is there now, and what was removed since it must not be loaded, each with the reason."""

    path: Path
    removed: tuple[str, ...] = ()


class Best(NamedTuple):
    """The library to load, and which better or newer ones must not be."""

    set: InstructionSet
    path: Path
    passed_over: str = ""

    def noted(self, note: str) -> str:
        """A note about this library, with what was passed over for it."""
        return f"{note}; {self.passed_over}. Fix: herd kernels build" if self.passed_over else note


def build(folder: Path, sets: Sequence[InstructionSet] = INSTRUCTION_SETS) -> list[Built]:
    """Compile what is not there yet, for these instruction sets: none of them has to be this machine's.

    What is damaged is compiled anew. Raises BadInput if there is no compiler, if it fails, if the folder
    cannot be written, or if others can change it.
    """
    version = _compiler_version()
    try:
        place = trusted_folder(_folder_of(folder), make=True)
        with _locked(place):  # who comes second finds all there
            for left in place.glob("tmp*"):  # by a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            return [_built(place, set, version) for set in sets]
    except OSError as error:
        raise BadInput(f"native kernels cannot be kept in {folder}: {error}. Fix: HERD_KERNELS_DIR") from None


def usable_sets() -> list[InstructionSet]:
    """The instruction sets that this machine has, the best first. Raises BadInput when there is none."""
    if not is_known_machine():
        raise BadInput("there are none for this kind of machine")
    usable = [set for set in INSTRUCTION_SETS if not set.complaint]
    if not usable:
        raise BadInput(INSTRUCTION_SETS[-1].complaint)
    return usable


def best_library(folder: Path) -> Best:
    """The library of the best instruction set that this machine has. Raises BadInput when there is none."""
    passed_over: list[str] = []
    for set in usable_sets():
        for path, complaint in _complaints(folder, set):
            if not complaint:
                return Best(set, path, ", ".join(passed_over))
            passed_over.append(f"{path} {complaint}")
    raise BadInput(f"{', '.join(passed_over) or f'not built in {folder}'}. Fix: herd kernels build")


def _complaints(folder: Path, set: InstructionSet) -> Iterator[tuple[Path, str]]:
    """The libraries for an instruction set, the newest first, each with why not to load it, if so."""
    try:
        place = trusted_folder(_folder_of(folder))
    except FileNotFoundError:
        return
    for path in libraries(place, f"{set.name}.*"):
        yield path, complaint_of(path)


@cache
def _source_key() -> str:
    """A key that changes with any byte of the sources, and with any flag."""
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


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _built(place: Path, set: InstructionSet, version: str) -> Built:
    found = {path: complaint_of(path) for path in libraries(place, f"{set.name}.*")}
    removed = {path: complaint for path, complaint in found.items() if complaint}
    for path in removed:
        path.unlink()
    stem = f"{set.name}.{version}"
    whole = [path for path in found if path not in removed and path.name.startswith(f"{stem}.")]
    path = whole[0] if whole else _compiled(place, stem, set)
    return Built(path, tuple(f"{path} {complaint}" for path, complaint in removed.items()))


def _compiled(place: Path, stem: str, set: InstructionSet) -> Path:
    """Compile beside the place, with the compiler's own files, and move the library there."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        library = Path(folder) / f"{set.name}.so"
        source = SOURCES / "library.cpp"
        compiler = [COMPILER, *_FLAGS, *set.compiler_flags, str(source), "-o", str(library)]
        command = ["env", f"TMPDIR={folder}", *compiler]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_COMPILER_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise BadInput(
                f"{COMPILER} took more than {_COMPILER_TIMEOUT_S} s on the kernels for {set.name}. "
                "Fix: herd kernels build, when the machine has less to do"
            ) from None
        if done.returncode:
            raise BadInput(f"{COMPILER} failed on the kernels for {set.name}:\n{done.stderr.strip()[-4000:]}")
        return keep(library, place, stem)
