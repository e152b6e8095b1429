"""A worker in a process of its own."""

import subprocess
from pathlib import Path

import pytest

from llama_herd.worker.chaos.worker_process import WorkerProcess
from llama_herd.worker.settings import WorkerSettings

DEAF = "trap '' TERM; echo deaf; exec sleep 60"


def test_one_that_does_not_stop_is_killed_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_herd.worker.chaos.worker_process.PATIENCE_S", 0.1)
    worker = WorkerProcess(WorkerSettings.read(), "deaf@test", tmp_path / "log")
    with subprocess.Popen(["sh", "-c", DEAF], stdout=subprocess.PIPE) as worker.process:
        assert worker.process.stdout is not None
        worker.process.stdout.readline()
        with pytest.raises(TimeoutError, match="worker deaf@test did not end"):
            worker.stop()
    assert not worker.is_alive
