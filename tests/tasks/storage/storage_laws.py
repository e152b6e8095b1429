"""What every storage does."""

import pytest

from llama_herd.errors import FileLost
from llama_herd.tasks.storage.storage import Storage, StoragePlace

FILE = StoragePlace("acme", "file-1")
JOURNAL = StoragePlace("acme", "batch_1") / "output-1.jsonl"

#: Lengths of files, of which the last is sent in several parts where that is done.
LENGTHS = (0, 1, 100_000, 40_000_000)


def written(storage: Storage, place: StoragePlace, content: bytes, *, keeps: bool = True) -> None:
    with storage.draft(place) as draft:
        for start in range(0, len(content), 1 << 20):
            draft.write(content[start : start + (1 << 20)])
        assert draft.num_bytes == len(content)
        if keeps:
            draft.keep()


def content_of(storage: Storage, place: StoragePlace) -> bytes:
    with storage.read(place) as file:
        return file.read()


def check_files(storage: Storage, num_bytes: int) -> None:
    """A file appears whole, stays the same for another who opens the storage, and is gone when deleted."""
    content = bytes(range(251)) * (num_bytes // 251) + bytes(num_bytes % 251)
    with pytest.raises(FileLost):
        content_of(storage, FILE)
    written(storage, FILE, content, keeps=False)
    with pytest.raises(FileLost):
        content_of(storage, FILE)
    written(storage, FILE, content)
    assert content_of(storage, FILE) == content
    storage.delete(FILE)
    storage.delete(FILE)
    with pytest.raises(FileLost):
        content_of(storage, FILE)


def check_journals(storage: Storage) -> None:
    """A journal grows, is read up to an extent of it, and goes with its batch."""
    assert storage.extent(JOURNAL) == 0
    assert not list(storage.lines(JOURNAL, 0))
    with storage.journal(JOURNAL) as journal:
        journal([b"one\n", b"two\n"])
        first = storage.extent(JOURNAL)
        journal([])
        journal([b"three\n"])
    whole = storage.extent(JOURNAL)
    assert list(storage.lines(JOURNAL, first)) == [b"one\n", b"two\n"]
    assert list(storage.lines(JOURNAL, whole)) == [b"one\n", b"two\n", b"three\n"]
    assert storage.extent(StoragePlace("acme", "batch_1") / "output-11.jsonl") == 0
    storage.delete(StoragePlace("acme", "batch_1"))
    assert storage.extent(JOURNAL) == 0
