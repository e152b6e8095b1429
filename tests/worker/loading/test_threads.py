"""How many threads a worker takes, and what it says of a number that is too high."""

import os
from pathlib import Path

import pytest

from llama_herd.worker.loading.machine import complaint_of_threads, num_cores, num_threads
from llama_herd.worker.settings import WorkerSettings

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", CORES), ("150000 100000", 1), ("50000 100000", 1), (f"{9 * CORES}00000 100000", CORES)],
)
def test_a_container_s_limit_counts_in_whole_cores(tmp_path: Path, limit: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert num_cores([tmp_path]) == cores


def test_without_a_limit_it_is_the_cores_that_it_may_run_on(tmp_path: Path) -> None:
    assert num_cores([tmp_path]) == CORES


def test_one_core_is_left_to_the_rest_unless_threads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_herd.worker.loading.machine.num_cores", lambda: 8)
    assert num_threads(WorkerSettings()) == 7
    assert num_threads(WorkerSettings(threads=8)) == 8


def test_no_more_threads_are_taken_than_there_are_cores() -> None:
    many = num_cores() + 1
    assert num_threads(WorkerSettings(threads=many)) == num_cores()
    (core, *_) = allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        assert num_threads(WorkerSettings(threads=many)) == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_more_threads_than_cores_are_complained_of_with_both_numbers() -> None:
    assert complaint_of_threads(WorkerSettings(threads=num_cores())) == ""
    many = num_cores() + 1
    complaint = complaint_of_threads(WorkerSettings(threads=many))
    assert complaint == f"HERD_THREADS={many} is more than this process has cores, so it takes {num_cores()}"
