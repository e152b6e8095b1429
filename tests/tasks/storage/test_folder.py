"""Files and journals in a folder."""

import os
from pathlib import Path

import pytest

from llama_herd.errors import StorageUnavailable
from llama_herd.tasks.storage.folder import Folder
from tests.full_disk import room_for
from tests.tasks.storage.storage_laws import (
    FILE,
    JOURNAL,
    LENGTHS,
    check_files,
    check_journals,
    content_of,
    written,
)


@pytest.mark.parametrize("num_bytes", LENGTHS)
def test_files(tmp_path: Path, num_bytes: int) -> None:
    check_files(Folder(tmp_path), num_bytes)


def test_journals(tmp_path: Path) -> None:
    check_journals(Folder(tmp_path))


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with folder.journal(JOURNAL) as journal:
        journal([b"one\n", b"two\n"])
    path = tmp_path / JOURNAL.tenant / JOURNAL.name
    os.truncate(path, 6)
    assert folder.extent(JOURNAL) == 4
    assert list(folder.lines(JOURNAL, folder.extent(JOURNAL))) == [b"one\n"]


def test_what_is_measured_of_a_journal_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have died before it saw to that, and whoever measures counts on it."""
    (tmp_path / JOURNAL.tenant / JOURNAL.name).parent.mkdir(parents=True)
    (tmp_path / JOURNAL.tenant / JOURNAL.name).write_bytes(b"one\n")
    synced = set[int]()
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.fstat(number).st_ino))
    assert Folder(tmp_path).extent(JOURNAL) == 4
    assert (tmp_path / JOURNAL.tenant / JOURNAL.name).stat().st_ino in synced


def test_a_folder_has_one_id_for_all_who_share_it(tmp_path: Path) -> None:
    assert not Folder(tmp_path / "new").is_there
    first, second = Folder(tmp_path / "new").id, Folder(tmp_path / "new").id
    assert first == second
    assert first != Folder(tmp_path / "other").id
    assert Folder(tmp_path / "new").is_there


def test_a_disk_that_is_full_is_told(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / f"{FILE.name}.new").symlink_to("/dev/full")
    with pytest.raises(StorageUnavailable, match=r"No space left on device\. Fix: make room"):
        written(Folder(tmp_path), FILE, b"x" * 100_000)


def test_a_journal_that_cannot_grow_is_told_and_stays_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with folder.journal(JOURNAL) as journal:
        journal([b"one\n"])
        with room_for(4), pytest.raises(StorageUnavailable, match=r"File too large\. Fix: make room"):
            journal([b"two\n"])
    assert list(folder.lines(JOURNAL, folder.extent(JOURNAL))) == [b"one\n"]


def test_a_folder_whose_file_system_is_gone_loses_nothing(tmp_path: Path) -> None:
    """Under an absent mount lies an empty folder: nothing is put there, and nothing counts as lost."""
    folder = Folder(tmp_path / "mount")
    assert folder.id
    written(folder, FILE, b"x")
    (tmp_path / "mount").rename(tmp_path / "away")
    (tmp_path / "mount").mkdir()
    for act in (
        lambda: written(folder, FILE, b"y"),
        lambda: content_of(folder, FILE),
        lambda: folder.delete(FILE),
        lambda: folder.extent(JOURNAL),
        lambda: folder.journal(JOURNAL).__enter__(),
    ):
        with pytest.raises(StorageUnavailable, match="is not the folder that it was"):
            act()
    assert not list((tmp_path / "mount").iterdir())
    (tmp_path / "mount").rmdir()
    (tmp_path / "away").rename(tmp_path / "mount")
    assert content_of(folder, FILE) == b"x"
