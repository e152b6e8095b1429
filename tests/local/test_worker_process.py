"""A worker in a process of its own."""

import subprocess
from pathlib import Path

import pytest

from llama_herd.local.worker_process import WorkerDied, starting_worker
from llama_herd.worker.settings import WorkerSettings
from tests.local.tended_worker import PATIENCE_S, TendedWorker

DEAF = "trap '' TERM; echo deaf; exec sleep 60"


def test_one_that_does_not_stop_is_killed_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.local.tended_worker.PATIENCE_S", 0.1)
    worker = TendedWorker(WorkerSettings.read(), "deaf@test", tmp_path / "log")
    with subprocess.Popen(["sh", "-c", DEAF], stdout=subprocess.PIPE) as worker.process:
        assert worker.process.stdout is not None
        worker.process.stdout.readline()
        with pytest.raises(TimeoutError, match="worker deaf@test did not end"):
            worker.stop()
    assert not worker.is_alive


@pytest.mark.redis
@pytest.mark.worker
@pytest.mark.usefixtures("forked_workers")
def test_one_that_cannot_start_is_told_of_with_its_last_words(redis_url: str, tmp_path: Path) -> None:
    settings = WorkerSettings.read(redis_url=redis_url, model=tmp_path / "nowhere.gguf")
    with starting_worker(settings, "lost") as worker:
        folder = worker.log_path.parent
        worker.process.wait(PATIENCE_S)
        with pytest.raises(WorkerDied, match=r"worker lost@\S+ ended with exit code 2.*\n.*nowhere\.gguf"):
            worker.check()
    assert not folder.exists()


@pytest.mark.redis
@pytest.mark.worker
def test_one_that_is_only_starting_leaves_nothing(redis_url: str, tiny_settings: WorkerSettings) -> None:
    settings = tiny_settings.model_copy(update={"redis_url": redis_url})
    with starting_worker(settings, "brief") as worker:
        worker.check()
        folder = worker.log_path.parent
    assert not worker.is_alive
    assert not folder.exists()
