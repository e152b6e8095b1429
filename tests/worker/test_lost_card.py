"""A worker whose GPU is lost ends by a code of its own, and its jobs go on in another."""

from pathlib import Path
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Token
from llama_herd.worker.process import EXIT_DEVICE_LOST
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import PATIENCE_S, WorkerProcess, held
from tests.local.tended_worker import TendedWorker
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
ERROR = "Triton Error [CUDA]: an illegal memory access was encountered"


@pytest.mark.fault
def test_jobs_go_on_elsewhere_and_only_those_it_computed_count_the_death(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    model = write_tiny_gguf(tmp_path / "lost-card.gguf", eos=False)
    fault, log = tmp_path / "fault", tmp_path / "log"
    breaks: dict[str, Any] = {"include": "tests.worker.lost_card", "env": {"LOST_CARD": str(fault)}}
    with (
        Client(server.url, model="lost-card") as client,
        WorkerProcess(server.url, model, "lost", log, held_by=tmp_path, slots=1, **breaks) as lost,
    ):
        with held(tmp_path, num_tokens=3):
            computed = client.submit(prompt="one", sampling={"max_tokens": 100, "temperature": 0.0})
            stream = client.stream(computed, timeout_s=PATIENCE_S)
            assert any(isinstance(event, Token) for event in stream)
            waiting = client.submit(prompt="two", sampling={"max_tokens": 9})
            fault.write_text(ERROR)
        assert lost.wait_for_end() == EXIT_DEVICE_LOST
        assert "the GPU is lost, ending the worker" in lost.log
        assert ERROR in lost.log
        with WorkerProcess(server.url, model, "sound", tmp_path / "sound.log"):
            results = [client.result(job, timeout_s=PATIENCE_S) for job in (computed, waiting)]
    assert [result.finish_reason for result in results] == ["length", "length"]
    assert [len(result.ids) for result in results] == [100, 9]
    assert [result.attempts for result in results] == [2, 1]


@pytest.mark.program
def test_a_card_that_is_lost_while_it_loads_is_tried_once_more_without_kernels(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    """In a real process: it begins anew by its own command."""
    model = write_tiny_gguf(tmp_path / "tried-again.gguf")
    fault = tmp_path / "fault.load"
    fault.write_text(ERROR)
    settings = WorkerSettings.read(redis_url=server.url, model=model)
    environment = {"LOST_CARD": str(fault)}
    worker = TendedWorker(
        settings, "again@test", tmp_path / "log", include="tests.worker.lost_card", env=environment, cwd=ROOT
    )
    with worker, Client(server.url, model="tried-again") as client:
        assert client.result(client.submit(prompt="one", sampling={"max_tokens": 3})).ids
        assert worker.log.count("starting again with HERD_TRITON=off") == 1
