"""Workers that start together never plan to take more than the machine has."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llama_herd.worker.loading import machine
from llama_herd.worker.loading.machine import free_bytes, machine_bytes
from llama_herd.worker.loading.neighbours import PlanNotes, process_name
from tests.full_disk import room_for
from tests.tiny import write_tiny_gguf
from tests.worker.loading.forked_loader import ForkedLoader

GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's notes, where no others of this machine are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"llama-herd-{os.getuid()}"


@pytest.mark.worker
def test_workers_that_start_at_the_same_instant_plan_no_more_than_there_is(
    folder: Path, tmp_path: Path
) -> None:
    """Each alone would take half of what is free, and none has touched it when the next one looks."""
    model = write_tiny_gguf(tmp_path / "long.gguf", num_layers=16, context_length=32_768)
    workers = [ForkedLoader(model, folder.parent) for _ in range(3)]
    try:
        pids = {worker.process.pid for worker in workers}
        available = machine_bytes() + sum(map(machine.resident_bytes, pids))
        for worker in workers:
            worker.load()
        planned = [worker.planned_bytes() for worker in workers]
        assert max(planned) > available / 3
        # Others of this machine come and go meanwhile. Without notes the three would plan half as much again.
        assert sum(planned) <= 1.2 * available
        assert free_bytes("cpu") < available / 2
        assert set(PlanNotes("cpu").others()) == pids
    finally:
        for worker in workers:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
    assert free_bytes("cpu") > available / 2


@pytest.mark.long
def test_a_note_counts_as_long_as_its_process_lives(folder: Path) -> None:
    notes = PlanNotes("cpu")
    script = (
        "import sys; from llama_herd.worker.loading.neighbours import PlanNotes; notes = PlanNotes('cpu')\n"
    )
    script += "with notes.turn(): notes.write(7)\nprint(flush=True); sys.stdin.read()"
    with notes.turn():
        notes.write(5)  # our own
    assert notes.others() == {}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder.parent)},
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert notes.others() == {other.pid: 7}
        assert PlanNotes("another device").others() == {}
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert notes.others() == {}, "dead, not yet buried"
    assert [path.name for path in (folder / "cpu").glob("*-*")] == [process_name()]


def test_a_note_of_a_process_whose_id_is_used_again_is_thrown_away(folder: Path) -> None:
    notes = PlanNotes("cpu")
    with notes.turn():
        (folder / "cpu" / f"{os.getppid()}-1").write_text(json.dumps(GIB))
    assert notes.others() == {}
    assert not list((folder / "cpu").glob("*-1"))


def test_a_folder_that_is_somebody_elses_is_not_believed(folder: Path, tmp_path: Path) -> None:
    """A link stands for what another user may put there; a worker starts all the same."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "cpu").mkdir(parents=True)
    folder.symlink_to(elsewhere)
    notes = PlanNotes("cpu")
    with notes.turn():
        notes.write(5)
    assert notes.others() == {}
    assert not list((elsewhere / "cpu").iterdir())


def test_without_a_place_for_notes_a_worker_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    notes = PlanNotes("cpu")
    with notes.turn():
        notes.write(5)
    assert notes.others() == {}
    assert free_bytes("cpu") > 0


def test_without_any_temporary_folder_a_worker_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes none in which it cannot write a byte, as on a read-only file system."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    with room_for(0), capture_logs() as logs:
        notes = PlanNotes("cpu")
        with notes.turn():
            notes.write(5)
        assert notes.others() == {}
        assert free_bytes("cpu") > 0
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_a_process_that_stands_still_in_its_turn_keeps_no_worker_from_starting(folder: Path) -> None:
    frozen, patient = PlanNotes("cpu"), PlanNotes("cpu", max_wait_s=0.1)
    with frozen.turn():
        with capture_logs() as logs, patient.turn():
            patient.write(5)
        assert [(entry["log_level"], entry["waited_s"]) for entry in logs] == [("warning", 0.1)]
    with capture_logs() as logs, patient.turn():
        pass
    assert not logs, "its turn is over, and the lock with it"


def test_a_full_disk_keeps_no_worker_from_starting(folder: Path) -> None:
    notes = PlanNotes("cpu")
    with notes.turn():
        notes.write(GIB)
        (own,) = (folder / "cpu").glob(f"{os.getpid()}-*")
        own.unlink()
        own.symlink_to("/dev/full")
        with capture_logs() as logs:
            notes.write(GIB)
    assert [entry["log_level"] for entry in logs] == ["warning"]
