"""Files in a folder of this machine, or of a file system that several share."""

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from llama_herd.errors import FileLost, StorageFull, StorageUnavailable
from llama_herd.tasks.storage.line_file import CannotWrite, LineFile, whole_bytes
from llama_herd.tasks.storage.storage import Journal, StoragePlace

#: The name of the file with the folder's id. No tenant's folder has a dot.
ID_FILE = "folder.id"
#: What a system says where there is no room.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class Folder:
    """A folder with a folder for each tenant. A file that is being written has a name of its own."""

    flush_s = 0.0

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def is_there(self) -> bool:
        return (self._root / ID_FILE).exists()

    @cached_property
    def id(self) -> str:
        """Drawn when the folder is first used."""
        path = self._root / ID_FILE
        with self._storage_errors():
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)  # prompts and answers lie there
            if not path.exists():
                self._draw_id(path)
            return path.read_text("ascii").strip()

    def _draw_id(self, path: Path) -> None:
        draft = path.with_name(f"{uuid.uuid4().hex}.new")
        try:
            draft.write_text(uuid.uuid4().hex)
            with suppress(FileExistsError):  # another gateway has drawn one
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(self._root)

    @contextmanager
    def draft(self, place: StoragePlace) -> Iterator["_Draft"]:
        path = self._path(place)
        with self._storage_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.new")
            with draft.open("wb", buffering=0) as file:
                writing = _Draft(file, path, self._storage_errors)
                try:
                    yield writing
                finally:
                    if not writing.is_kept:
                        draft.unlink(missing_ok=True)

    @contextmanager
    def read(self, place: StoragePlace) -> Iterator[BinaryIO]:
        with self._storage_errors(), self._path(place).open("rb") as file:
            yield file

    def delete(self, place: StoragePlace) -> None:
        path = self._path(place)
        with self._storage_errors():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.new").unlink(missing_ok=True)

    @contextmanager
    def journal(self, place: StoragePlace) -> Iterator[Journal]:
        path = self._path(place)
        with self._storage_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
        with LineFile(path) as file:
            _sync_folder(path.parent)

            def append(lines: Sequence[bytes]) -> None:
                try:
                    file.append(lines)
                except CannotWrite as error:
                    raise _unavailable(self._root, error.error or OSError()) from error

            yield append

    def extent(self, place: StoragePlace) -> int:
        """In bytes."""
        with self._storage_errors(), suppress(FileNotFoundError), self._path(place).open("rb") as file:
            num_bytes = whole_bytes(file.fileno())
            os.fsync(file.fileno())  # who has written it may have died before that
            return num_bytes
        return 0

    def lines(self, place: StoragePlace, extent: int) -> Iterator[bytes]:
        if not extent:
            return
        with self.read(place) as file:
            while extent > 0 and (line := file.readline()):
                extent -= len(line)
                yield line

    def _path(self, place: StoragePlace) -> Path:
        return self._root / place.tenant / place.name

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Within it what is absent is lost, unless the whole folder is: as under a mount that is away."""
        try:
            if "id" in self.__dict__ and not self.is_there:
                raise _unavailable(self._root, OSError(errno.ENOENT, "it is not the folder that it was"))
            yield
        except FileNotFoundError as error:
            raise FileLost(f"a file is gone from {self._root}") from error
        except OSError as error:
            raise _unavailable(self._root, error) from error


class _Draft:
    def __init__(
        self, file: FileIO, path: Path, storage_errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.num_bytes = 0
        self.is_kept = False
        self._file = file
        self._path = path
        self._storage_errors = storage_errors

    def write(self, part: bytes) -> None:
        left = memoryview(part)
        with self._storage_errors():  # whoever writes may do so in another thread than that of the block
            while left:
                left = left[self._file.write(left) :]
        self.num_bytes += len(part)

    def keep(self) -> None:
        with self._storage_errors():
            os.fsync(self._file.fileno())
            os.replace(self._file.name, self._path)
            self.is_kept = True
            _sync_folder(self._path.parent)


def _unavailable(root: Path, error: OSError) -> StorageUnavailable:
    kind = StorageFull if error.errno in _FULL else StorageUnavailable
    return kind(
        f"files cannot be stored in {root}: {error.strerror or type(error).__name__}. "
        "Fix: make room or give the rights there, or set HERD_GATEWAY_FILES"
    )


def _sync_folder(path: Path) -> None:
    """Let the names in a folder outlast a loss of power, too."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
