"""Storage: the interface of folders and buckets. Files appear whole or not at all; journals grow by lines."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """Where something lies: a tenant, and ids that we have made. No name of a client's is part of it."""

    tenant: str
    name: str

    def __truediv__(self, part: str) -> "StoragePlace":
        return StoragePlace(self.tenant, f"{self.name}/{part}")


class Draft(Protocol):
    """A file that is being written. Without `keep` its bytes are dropped at the end of the block."""

    num_bytes: int

    def write(self, part: bytes) -> None: ...

    def keep(self) -> None:
        """Let the file appear, whole and safe."""


#: Writes lines that are safe once it returns. A journal has one writer, which began it.
Journal = Callable[[Sequence[bytes]], None]


class Storage(Protocol):
    """A place for files. Raises StorageUnavailable if it cannot be reached or written.

    id: the same for all who share it. flush_s: how long lines should be gathered for one `append`.
    """

    flush_s: float

    @property
    def is_there(self) -> bool:
        """Whether anything was ever stored."""

    @property
    def id(self) -> str: ...

    def draft(self, place: StoragePlace) -> AbstractContextManager[Draft]: ...

    def read(self, place: StoragePlace) -> AbstractContextManager[BinaryIO]:
        """The bytes of a file. Raises FileLost."""

    def delete(self, place: StoragePlace) -> None:
        """Delete a file, its draft, or everything under a place. Nothing may be there."""

    def journal(self, place: StoragePlace) -> AbstractContextManager[Journal]:
        """Begin a journal that is not there."""

    def extent(self, place: StoragePlace) -> int:
        """The size of a journal now, in whole lines, by this storage's own measure; 0: nothing."""

    def lines(self, place: StoragePlace, extent: int) -> Iterator[bytes]:
        """The lines of a journal up to an extent of it."""
