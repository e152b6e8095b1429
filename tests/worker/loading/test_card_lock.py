"""Two workers take one GPU only if both say so, and it is free as soon as its worker has ended, however."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llama_herd.errors import DeviceError
from llama_herd.worker.loading import neighbours
from llama_herd.worker.loading.neighbours import own_folder, process_name, take_card

CARD = "GPU-aaaa-bbbb"
HOLD = f"""
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from llama_herd.worker.loading.neighbours import take_card
take_card("{CARD}", sys.argv[2], is_shared=sys.argv[3] == "shared")
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of its own, in which this process has no card yet and has none afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(neighbours, "_held", {})
    yield tmp_path
    for lock in neighbours._held.values():
        lock.close()


@contextmanager
def holder(folder: Path, name: str, kind: str = "alone") -> Iterator[subprocess.Popen[str]]:
    """A process that has the card."""
    command = [sys.executable, "-c", HOLD, str(folder), name, kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        try:
            yield process
        finally:
            process.kill()


def take(*, is_shared: bool = False, max_wait_s: float = 0.0, card: str = CARD) -> None:
    take_card(card, "second@here", is_shared=is_shared, max_wait_s=max_wait_s)


@pytest.mark.long
def test_a_card_that_is_taken_is_refused_with_the_name_of_who_has_it(folder: Path) -> None:
    with holder(folder, "first@here") as first:
        with pytest.raises(DeviceError) as refused:
            take()
        said = str(refused.value)
        assert said.startswith(f"the GPU {CARD} is taken by first@here (process {first.pid}). Fix: ")
        assert "HERD_MEMORY_SHARE below 1" in said
        take(card="GPU-other")
        with pytest.raises(DeviceError):
            take(is_shared=True)


@pytest.mark.long
def test_workers_that_share_it_may_have_it_together(folder: Path) -> None:
    with holder(folder, "first@here", "shared"), holder(folder, "third@here", "shared"):
        with pytest.raises(DeviceError, match=r"(first|third)@here.*, (first|third)@here"):
            take()
        take(is_shared=True)


@pytest.mark.long
def test_it_is_free_when_its_worker_was_killed_and_a_second_time_is_ours_already(folder: Path) -> None:
    with holder(folder, "first@here") as first:
        first.kill()
        take(max_wait_s=20.0)
        take()


def test_without_a_folder_of_our_own_a_worker_starts_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "not there"))
    take()


def test_a_full_disk_keeps_no_worker_from_starting() -> None:
    take()
    (note,) = own_folder().glob(f"*/holder-{process_name()}")
    note.unlink()
    note.symlink_to("/dev/full")
    neighbours._held.popitem()[1].close()
    with capture_logs() as logs:
        take()
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert CARD in neighbours._held


def test_nothing_is_written_where_another_user_has_put_a_link(folder: Path, tmp_path: Path) -> None:
    elsewhere, theirs = tmp_path / "elsewhere", tmp_path / "theirs"
    theirs.write_text("all that they have")
    place = elsewhere / f"card-{CARD}"
    place.mkdir(parents=True)
    (place / "lock").symlink_to(theirs)
    own_folder().symlink_to(elsewhere)
    take()
    assert theirs.read_text() == "all that they have"
    assert [path.name for path in place.iterdir()] == ["lock"]
