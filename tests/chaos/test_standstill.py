"""Workers that live but do not work: they say so, their jobs go on elsewhere, and silence ends them."""

import signal
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from celery.result import AsyncResult
from redis import Redis

from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.process import EXIT_SILENT, EXIT_STUCK
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.faults.long_waits import SOON_LOST
from tests.chaos.harness.patience import wait_until
from tests.cli.herd_command import invoke
from tests.local.processes import hold, release
from tests.local.tended_worker import TendedWorker
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

INCLUDE = "tests.worker.standstill"

#: Longer than any test, unless it is cancelled.
LONG: dict[str, Any] = {"prompt": "a", "sampling": {"max_tokens": 4000, "ignore_eos": True}}
SHORT: dict[str, Any] = {"prompt": "a", "sampling": {"max_tokens": 2, "ignore_eos": True}}


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> WorkerSettings:
    return WorkerSettings.read(
        redis_url=redis_url,
        model=write_tiny_gguf(tmp_path / "m.gguf", context_length=8192),
        slots=1,
        threads=1,
        stall_s=1.0,
        silence_s=2.0,
        lease_ms=1000,
    )


@pytest.fixture
def client(settings: WorkerSettings) -> Iterator[Client]:
    with Client(settings.redis_url, model="m") as client:
        yield client


@pytest.fixture
def worker(settings: WorkerSettings, tmp_path: Path) -> TendedWorker:
    return TendedWorker(
        settings,
        f"held@{gethostname()}",
        tmp_path / "log",
        include=INCLUDE,
        env={"STANDSTILL": str(tmp_path), "STANDSTILL_STEP_S": "0.005"},  # so LONG takes 20 s at least
    )


def status(client: Client, worker: TendedWorker) -> WorkerStatus:
    (status,) = [one for one in client.workers() if one.name == worker.name]
    return status


def wait_for_beats(client: Client, worker: TendedWorker, seconds: int) -> None:
    """Wait until the worker has lived on for some seconds."""
    until_ms = status(client, worker).beat_ms + 1000 * seconds
    wait_until(lambda: status(client, worker).beat_ms >= until_ms, "the worker lives on")


def test_a_worker_that_takes_no_messages_ends_itself(
    worker: TendedWorker, client: Client, tmp_path: Path
) -> None:
    with worker:
        client.result(client.submit(**SHORT), timeout_s=30)
        (tmp_path / "consumer").touch()
        wait_for_beats(client, worker, 4)  # nothing waits: no fault of its own
        client.submit(**SHORT)
        assert worker.wait_for_end() == EXIT_SILENT
        assert "messages wait but none was taken, ending the worker" in worker.log


def test_a_worker_with_a_full_batch_may_leave_messages_waiting(
    worker: TendedWorker, client: Client, redis: Redis
) -> None:
    with worker:
        jobs = [client.submit(**LONG) for _ in range(12)]
        wait_until(lambda: redis.llen("herd.m") == 3, "the batch and what is looked ahead are full")
        wait_for_beats(client, worker, 4)
        wait_until(lambda: status(client, worker).state == "ready", "the worker is ready")
        for job in jobs:
            client.cancel(job)
        assert {client.result(job, timeout_s=30).finish_reason for job in jobs} == {"cancelled"}


def test_a_rate_limit_may_leave_messages_waiting(
    settings: WorkerSettings, client: Client, redis: Redis, tmp_path: Path
) -> None:
    slow = {"STANDSTILL": str(tmp_path), "STANDSTILL_RATE": "1/m"}
    with TendedWorker(settings, "slow@test", tmp_path / "log", include=INCLUDE, env=slow) as worker:
        for _ in range(12):
            client.submit(**SHORT)
        wait_until(lambda: redis.llen("herd.m") == 2, "one has run, and nine are held for their time")
        wait_for_beats(client, worker, 4)
        assert redis.llen("herd.m") == 2
        wait_until(lambda: status(client, worker).state == "ready", "the worker is ready")


def test_an_engine_that_stands_still_loses_its_job_and_comes_back(
    worker: TendedWorker, client: Client, settings: WorkerSettings, tmp_path: Path
) -> None:
    environment = {"HERD_REDIS_URL": settings.redis_url}
    with worker:
        assert invoke("health", **environment).exit_code == 0
        hold(tmp_path, 20)
        job = client.submit(**LONG | {"sampling": {"max_tokens": 600, "ignore_eos": True}})
        next(event for event in client.stream(job) if event.type == "token")
        wait_until(lambda: status(client, worker).state == "stalled", "the worker calls itself stalled")
        assert invoke("health", **environment).exit_code == 1
        with TendedWorker(settings, "other@test", tmp_path / "other"):
            result = client.result(job, timeout_s=60)
        assert (result.finish_reason, len(result.ids)) == ("length", 600)
        assert result.attempts >= 2  # the other one's lease of a second may end, too
        release(tmp_path)
        wait_until(lambda: status(client, worker).state == "ready", "the worker is ready again")
        assert client.result(client.submit(**SHORT), timeout_s=30).finish_reason == "length"


def test_a_worker_whose_results_stand_still_says_so_and_ends(
    worker: TendedWorker, client: Client, settings: WorkerSettings, tmp_path: Path
) -> None:
    environment = {"HERD_REDIS_URL": settings.redis_url}
    with worker:
        (tmp_path / "finisher").touch()
        job = client.submit(**SHORT)
        wait_until(lambda: status(client, worker).state == "stuck", "the worker calls itself stuck")
        health = invoke("health", **environment)
        assert health.exit_code == 1
        assert "is stuck: sends no events or results" in health.stderr
        assert "is stuck: sends no events or results" in invoke("status", **environment).stdout
        assert worker.wait_for_end() == EXIT_STUCK
        assert '"part": "finisher"' in worker.log
    (tmp_path / "finisher").unlink()
    with TendedWorker(settings, "other@test", tmp_path / "other", **SOON_LOST):
        assert AsyncResult(job, app=make_app(settings)).get(timeout=60)["finish_reason"] == "length"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_worker_that_is_still_loading_its_model_leaves_at_once(
    worker: TendedWorker,
    client: Client,
    settings: WorkerSettings,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    (tmp_path / "load").touch()
    worker.start()
    try:
        wait_until((tmp_path / "loading").exists, "the model is being loaded")
        wait_until(client.workers, "the worker says so")
        assert status(client, worker).state == "loading"
        health = invoke("health", HERD_REDIS_URL=settings.redis_url)
        assert (health.exit_code, "is loading 0%" in health.stderr) == (1, True)
        worker.signal(number)
        assert worker.wait_for_end() == 0
        assert "critical" not in worker.log
    finally:
        worker.kill()


def test_a_worker_of_nohup_outlives_its_terminal(
    worker: TendedWorker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # a forked worker hears what its server heard as it began
    heard = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        worker.start()
    finally:
        signal.signal(signal.SIGHUP, heard)
    try:
        worker.wait_until_ready().signal(signal.SIGHUP)
        assert client.result(client.submit(**SHORT), timeout_s=30).worker == worker.name
        assert worker.stop() == 0
        assert "Restarting" not in worker.log
    finally:
        worker.kill()


def test_a_signal_that_a_library_swallows_while_the_model_is_loaded_ends_the_worker_after_it(
    worker: TendedWorker, tmp_path: Path
) -> None:
    for name in ("load", "swallow"):
        (tmp_path / name).touch()
    worker.start()
    try:
        wait_until((tmp_path / "loading").exists, "the model is being loaded")
        worker.signal(signal.SIGTERM)
        assert worker.wait_for_end() == 0
        assert "model loaded" in worker.log
    finally:
        worker.kill()
