"""Two models on one Redis, each under a name of its own: every job goes to the worker of its model."""

from pathlib import Path
from typing import Any

import pytest

from llama_herd.errors import UnservedModel
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Started
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

SHORT: SamplingFields = {"max_tokens": 3, "ignore_eos": True}


def test_each_job_goes_to_its_model_and_a_wrong_name_is_told_the_right_ones(
    redis_url: str, tmp_path: Path, tiny_settings: WorkerSettings
) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", eos=False)
    both: dict[str, Any] = {"models": "tales", "unserved_timeout_s": 1}
    first = both | {"served_model_name": "first"}
    second = both | {"served_model_name": "second", "model_name": "x"}
    with (
        Client(redis_url) as client,
        WorkerProcess(redis_url, tiny_settings.model, "a", tmp_path / "a", **first),
        WorkerProcess(redis_url, other, "b", tmp_path / "b", **second),
    ):
        workers = {"first": "a@test", "second": "b@test"}
        jobs = {model: client.submit(prompt="a", model=model, sampling=SHORT) for model in workers}
        for model, worker in workers.items():
            begun = next(iter(client.stream(jobs[model], timeout_s=PATIENCE_S)))
            assert isinstance(begun, Started)
            assert (begun.model, begun.worker) == (model, worker)
        with pytest.warns(UnservedModel, match="no worker serves tales: .* Served are: first, second"):
            client.submit(prompt="a", job_id="stray")
        with pytest.warns(UnservedModel, match=r"Did you mean second\? Served are: first, second"):
            mistyped = client.submit(prompt="a", model="secnod")
        ended = client.result(mistyped, timeout=PATIENCE_S)
        assert ended.error is not None
        assert ended.error.code == "unserved"

        def both_tell() -> bool:
            """Their speeds are of the last seconds, so each runs a job right before."""
            for model in workers:
                client.result(client.submit(prompt="a", model=model, sampling=SHORT), timeout_s=PATIENCE_S)
            queues = client.status().queues[:2]
            return all(one.num_ended and one.ttft_s and one.tokens_per_s for one in queues)

        wait_until(both_tell, "both tell of their jobs")
        found = client.status()
        assert [(queue.model, queue.workers, queue.waiting) for queue in found.queues] == [
            ("first", 1, 0),
            ("second", 1, 0),
            ("tales", 0, 1),
        ]
        assert client.job("stray").state == "unserved"


def test_a_served_name_wins_over_the_clients_and_the_files() -> None:
    path = Path("/models/llama.gguf")
    names = [
        WorkerSettings(model=path, model_name=model_name, served_model_name=served).queue
        for model_name, served in (("", ""), ("m", ""), ("m", "served"))
    ]
    assert names == ["herd.llama", "herd.m", "herd.served"]


def test_a_model_may_lie_in_ones_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no shell reads the name: in a .env, or as --model=~/x.gguf."""
    monkeypatch.setenv("HOME", "/home/mia")
    assert WorkerSettings.read(model="~/x.gguf").model == Path("/home/mia/x.gguf")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("models/Llama-3.2-1B-Instruct", "Llama-3.2-1B-Instruct"),
        ("Llama-3.2-1B.Q4_K_M.gguf", "Llama-3.2-1B.Q4_K_M"),
        ("Llama-3.2-1B-00001-of-00002.GGUF", "Llama-3.2-1B"),
        ("../Qwen2.5-0.5B/.", "Qwen2.5-0.5B"),
        (".", Path.cwd().name),
    ],
)
def test_a_model_is_called_as_its_folder_or_its_file_without_the_ending(model: str, name: str) -> None:
    assert WorkerSettings(model=Path(model)).served_model == name
