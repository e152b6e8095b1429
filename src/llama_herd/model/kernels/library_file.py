"""The file of a compiled library, whose name tells what must be in it.

    <instruction set>.<hash of the compiler's version>.<hash of the file>.so

So a file that was cut off or altered is known before it is loaded: to run it would end the process.
"""

import os
import stat
from hashlib import sha256
from pathlib import Path

from llama_herd.model.kernels.trusted_folder import complaint_of_file

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
