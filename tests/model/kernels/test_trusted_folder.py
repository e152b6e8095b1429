"""A folder is refused where others than this user and root can change it, or any folder on its way."""

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from llama_herd.errors import BadInput
from llama_herd.model.kernels import trusted_folder as module
from llama_herd.model.kernels.trusted_folder import trusted_folder

STRANGER = 12_345


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "parent" / "folder"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
@pytest.mark.parametrize("is_parent", [True, False])
def test_what_others_may_write_is_refused(
    folder: Path, mode: int, is_parent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_own_group", lambda gid: False)
    changed = folder.parent if is_parent else folder
    changed.chmod(mode)
    who = "group" if mode == 0o775 else "everybody"
    with pytest.raises(
        BadInput, match=f"^others can change {changed}, .*: {who}.* Fix: chmod go-w {changed}, or"
    ):
        trusted_folder(folder)
    changed.chmod(mode & ~0o022)
    assert trusted_folder(folder) == folder


def test_a_group_of_ones_own_is_nobody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o775)
    monkeypatch.setattr(module, "_is_own_group", lambda gid: gid == folder.stat().st_gid)
    assert trusted_folder(folder) == folder
    monkeypatch.setattr(module, "_has_access_list", lambda path: True)
    with pytest.raises(BadInput, match="group"):
        trusted_folder(folder)


@pytest.mark.parametrize(
    ("gid", "members", "others", "is_own"),
    [
        (1000, [], [], True),
        (1000, ["bob"], [1001], True),
        (1000, ["bob", "eve"], [], False),
        (1000, [], [1000], False),  # of another user too
        (1001, [], [], False),
    ],
)
def test_whose_group_it_is(
    monkeypatch: pytest.MonkeyPatch, gid: int, members: list[str], others: list[int], is_own: bool
) -> None:
    bob = SimpleNamespace(pw_name="bob", pw_uid=os.geteuid(), pw_gid=1000)
    users = [bob, *(SimpleNamespace(pw_name="eve", pw_uid=-1, pw_gid=other) for other in others)]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: bob)
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_mem=members))
    assert module._is_own_group.__wrapped__(gid) is is_own


def test_a_group_that_the_system_does_not_know_is_not_ones_own() -> None:
    assert not module._is_own_group(987_654)


def test_in_a_sticky_folder_only_what_is_ones_own_is_trusted(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert trusted_folder(folder) == folder
    with pytest.raises(BadInput, match=f"others can change {folder.parent}, "):
        trusted_folder(folder.parent)  # where anybody may put a library


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["parent", "parent/folder", "link"])
def test_what_belongs_to_another_user_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    link, theirs = tmp_path / "link", tmp_path / name
    link.symlink_to(folder)
    os.chown(theirs, STRANGER, 0, follow_symlinks=False)
    with pytest.raises(
        BadInput, match=f"others can change {theirs}, .*: it belongs to user {STRANGER}. Fix: set"
    ):
        trusted_folder(link)


def test_links_are_followed_and_what_they_lead_through_is_looked_at(folder: Path, tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    (open_folder / "second").symlink_to("../parent")
    (tmp_path / "first").symlink_to(open_folder / "second")
    assert trusted_folder(tmp_path / "first" / "folder") == folder
    assert trusted_folder(folder / ".." / "folder") == folder
    open_folder.chmod(0o777)
    with pytest.raises(BadInput, match=f"others can change {open_folder}, "):
        trusted_folder(tmp_path / "first" / "folder")


def test_links_in_a_ring_end(tmp_path: Path) -> None:
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(BadInput, match="has more than 40 links on its way"):
        trusted_folder(tmp_path / "ring")


def test_what_is_missing_is_made_for_none_but_oneself(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with pytest.raises(FileNotFoundError):
        trusted_folder(folder)
    before = os.umask(0)
    try:
        trusted_folder(folder, make=True)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o755, 0o755]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        trusted_folder(tmp_path / "file" / "folder", make=True)
