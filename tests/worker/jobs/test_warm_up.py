"""A worker runs warm before it takes a message, on the way of every job, and nothing of that remains."""

import threading
from collections.abc import Iterator, Sequence as Rows
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from llama_herd.model.kernels import huge_pages
from llama_herd.model.llama2 import Llama
from llama_herd.worker import process
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.runner import Reading, Row
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.jobs.warm_up import NUM_PROMPT_TOKENS
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.startup import start_service
from tests.chaos.harness.patience import wait_until
from tests.model.page_laws import check_prefixes
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.redis


class Step(NamedTuple):
    """A forward: on which thread, the tokens of each row, which of them are drawn at random."""

    thread: str
    num_tokens: list[int]
    are_random: list[bool]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """What engines compute from now on."""
    steps = list[Step]()

    run = ModelRunner.run

    def watched(runner: ModelRunner, rows: Rows[Row]) -> list[Reading]:
        are_random = [row.sequence.sampling_row().is_random for row in rows]
        steps.append(Step(threading.current_thread().name, [row.num_tokens for row in rows], are_random))
        return run(runner, rows)

    monkeypatch.setattr(ModelRunner, "run", watched)
    return steps


@contextmanager
def started(settings: WorkerSettings, redis_url: str) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "device", lambda: "cpu")
        service = start_service(
            settings.model_copy(update={"redis_url": redis_url}), "worker@test", WorkerHealth()
        )
    try:
        yield service
    finally:
        service.drain(0.0, lambda: None)


def model_of(service: Service) -> LoadedModel:
    assert isinstance(service._model, LoadedModel)
    return service._model


def test_both_kinds_of_draws_are_run_on_the_engines_thread(
    steps: list[Step], tiny_settings: WorkerSettings, redis_url: str
) -> None:
    with started(tiny_settings, redis_url):
        assert {step.thread for step in steps} == {"engine"}
        assert max(sum(step.num_tokens) for step in steps) >= NUM_PROMPT_TOKENS, "a prompt is computed"
        assert steps[-1].num_tokens == [1]
        assert {is_random for step in steps for is_random in step.are_random} == {True, False}


def test_weights_are_moved_before_it_is_over(
    tiny_settings: WorkerSettings, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited, settle = threading.Event(), Llama.settle

    def watched(llama: Llama) -> None:
        awaited.set()
        settle(llama)

    monkeypatch.setattr(Llama, "settle", watched)
    monkeypatch.setattr(huge_pages, "_move", lambda filled: awaited.wait())
    with started(tiny_settings, redis_url) as service:
        mover = model_of(service).llama.mover
        assert mover is not None
        assert not mover.is_alive()


def test_nothing_of_it_remains_but_the_steps(tiny_settings: WorkerSettings, redis_url: str) -> None:
    with started(tiny_settings, redis_url) as service:
        wait_until(lambda: not (now := service.standing.status()).running and not now.waiting, "its end")
        cache, status = model_of(service).cache, service.standing.status()
        assert cache.pages.num_free == cache.pages.num_pages
        assert cache.prefixes.num_queried_tokens == 0
        check_prefixes(cache.prefixes)
        assert (status.running, status.waiting, status.kv_cache_usage) == (0, 0, 0)
        assert (status.prefix_hit_rate, status.prefix_cache_hits) == (0, 0)
        assert status.steps > 0


def test_a_model_without_room_for_it_starts_cold(tmp_path: Path, steps: list[Step], redis_url: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", context_length=16)
    with started(WorkerSettings(model=path, slots=1, threads=1), redis_url):
        assert steps == []


def test_one_that_fails_is_said_and_jobs_are_taken(
    tiny_settings: WorkerSettings, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a kernel is missing")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Llama, "forward", broken)
        with started(tiny_settings, redis_url) as service:
            service.note_consuming()
            assert service.standing.status().state == "ready"
    warnings = [entry for entry in logs if entry["event"] == "warm-up failed, jobs may fail too"]
    assert len(warnings) == 2


def test_a_worker_that_could_be_faster_by_native_kernels_says_how(
    tiny_settings: WorkerSettings, redis_url: str, tmp_path: Path
) -> None:
    wanted = {"weights": "auto", "deterministic": False, "kernels_dir": str(tmp_path)}
    with capture_logs() as logs, started(tiny_settings.model_copy(update=wanted), redis_url):
        pass
    (warning,) = [line for line in logs if "native kernels" in line["event"]]
    assert warning["log_level"] == "warning"
    assert warning["reason"].endswith("Fix: herd kernels build")
