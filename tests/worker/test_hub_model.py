"""A worker whose model is named as one of Hugging Face."""

from pathlib import Path

import pytest

from llama_herd.local.worker_process import WorkerDied
from llama_herd.tasks.client.client import Client
from tests.hub_server import HubServer
from tests.local.processes import PATIENCE_S, WorkerProcess

pytest.importorskip("huggingface_hub")

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]


def test_it_fetches_its_model_and_serves_it_by_the_repositorys_name(
    redis_url: str, tiny_path: Path, tmp_path: Path
) -> None:
    files = {"tiny-F16.gguf": tiny_path.read_bytes(), "README.md": b""}
    with HubServer({"owner/tiny-GGUF": files}) as hub:
        env, name = hub.variables(tmp_path), Path("hf:owner/tiny-GGUF")
        with WorkerProcess(redis_url, name, "hub", tmp_path / "log", env=env) as worker:
            with Client(settings=worker.settings, model="tiny") as client:
                job_id = client.submit(prompt="a tale", sampling={"max_tokens": 3})
                assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason in ("stop", "length")
            assert "herd: fetching tiny-F16.gguf of owner/tiny-GGUF" in worker.log
            assert worker.stop() == 0


def test_without_hub_and_cache_it_ends_with_a_code_after_which_it_is_started_again(
    redis_url: str, tmp_path: Path
) -> None:
    with HubServer({}) as hub:
        env = hub.variables(tmp_path)
    worker = WorkerProcess(redis_url, Path("hf:owner/tiny"), "hub", tmp_path / "log", env=env)
    with (
        pytest.raises(WorkerDied, match=r"exit code 1.*\n.*cannot be reached"),
        worker,
    ):
        pass
    assert "Traceback" not in worker.log
