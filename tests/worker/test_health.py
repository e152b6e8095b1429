"""A worker's health from the start of its process to a standstill, over HTTP and as systemd is told it."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from llama_herd.tasks.client.client import Client
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import start_herd
from tests.local.processes import PATIENCE_S, WorkerProcess, held, wait_until
from tests.ops.test_systemd import Listener

pytestmark = pytest.mark.redis

#: When an engine is taken to stand still: a busy machine may hold one up for some seconds.
STALL_S = 8
#: Longer than any test.
LONG: dict[str, Any] = {"prompt": "a", "sampling": {"max_tokens": 4000, "ignore_eos": True}}


def test_before_the_model_is_loaded_it_lives_and_says_how_far_it_is() -> None:
    health = WorkerHealth()
    health.loaded_percent = 37
    assert health.live().status == "live"
    assert health.ready().status == "not ready"
    assert str(health.ready().reason).startswith("loading 37%: is loading its model")


def test_it_is_ready_while_it_takes_messages_and_redis_its_reports(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = WorkerHealth()
    health.service = service
    assert health.ready().reason == "starting: has not asked for messages yet"
    service.note_consuming()
    assert (health.live().status, health.ready().status) == ("live", "ready")
    monkeypatch.setattr(type(service), "unheard_s", 12.0)
    assert (health.live().status, health.ready().reason) == ("live", "Redis has taken no report for 12 s")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def said(port: int, what: str) -> tuple[int, str]:
    """The status of an answer, and its reason; 0: there is none."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health/{what}", timeout=10) as reply:
            return reply.status, ""
    except HTTPError as refused:
        return refused.code, str(json.load(refused)["reason"])
    except OSError as error:
        return 0, str(error)


def told_states(port: int) -> list[str]:
    """The states in which the worker is, by its metrics."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        lines = reply.read().decode()
    return re.findall(r'^herd_worker_state\{model_name="m",state="(\w+)"\} 1.0$', lines, re.M)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    one = Listener(str(tmp_path / "notify"))
    yield one
    one.close()


@pytest.mark.worker
def test_a_real_worker_lives_while_it_loads_and_not_when_it_stands_still(
    redis_url: str, endless_settings: WorkerSettings, port: int, listener: Listener, tmp_path: Path
) -> None:
    (tmp_path / "load").touch()
    worker = WorkerProcess(
        redis_url,
        endless_settings.model,
        "m",
        tmp_path / "log",
        held_by=tmp_path,
        step_s=0.02,
        env={"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "400000"},
        model_name="m",
        metrics_port=port,
        stall_s=STALL_S,
        log_level="info",
    )
    try:
        worker.start()
        wait_until((tmp_path / "loading").exists, "the model is being loaded")
        assert said(port, "live") == (200, "")
        status, reason = said(port, "ready")
        assert (status, reason.split(":")[0]) == (503, "loading 0%")
        assert told_states(port) == ["loading"]
        assert listener.heard()[0].startswith("STATUS=loading 0%: ")
        (tmp_path / "load").unlink()
        wait_until(lambda: said(port, "ready") == (200, ""), "it is ready")
        wait_until(lambda: told_states(port) == ["ready"], "its metrics say so, too")
        assert "READY=1" in listener.heard_until(lambda lines: "READY=1" in lines)
        with Client(redis_url, model="m") as client:
            job = client.submit(**LONG)
            next(event for event in client.stream(job) if event.type == "token")
            for _ in range(20):
                assert (said(port, "live"), said(port, "ready")) == ((200, ""), (200, ""))
            with held(tmp_path):
                stands = (503, f"no layer of the model has finished for {STALL_S} s")
                wait_until(lambda: said(port, "live") == stands, "it says that it stands still")
                assert said(port, "ready")[1].startswith("stalled: its engine stands still")
                listener.heard_until(lambda lines: lines == [f"STATUS={stands[1]}"])
            wait_until(lambda: said(port, "live") == (200, ""), "it goes on")
            client.cancel(job)
    finally:
        worker.kill()


#: In the place of torch: it says that it is imported, and that is all.
TORCH = "import sys; print('torch is imported', file=sys.stderr, flush=True); sys.exit(3)"


@pytest.mark.worker
def test_the_first_line_of_the_log_names_the_model_before_torch_is_imported(
    redis_url: str, tiny_settings: WorkerSettings, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    process = start_herd(
        tmp_path,
        *("worker", "--model", str(tiny_settings.model), "--device", "cpu", "--served-model-name", "m"),
        HERD_REDIS_URL=redis_url,
        PYTHONPATH=path,
    )
    try:
        _, log = process.communicate(timeout=PATIENCE_S)
    finally:
        process.send_signal(signal.SIGKILL)
    first, second, *_ = log.splitlines()
    line = json.loads(first)
    assert (line["event"], line["model"], line["file"]) == ("loading model", "m", str(tiny_settings.model))
    assert second == "torch is imported"
