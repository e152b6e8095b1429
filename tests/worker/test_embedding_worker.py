"""A real worker with a model that embeds."""

from pathlib import Path
from typing import Any

import pytest

from llama_herd import Client, GenerationError
from llama_herd.model.shape.pooling import Pooling
from tests.local.processes import WorkerProcess
from tests.model.test_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(150)]


def test_a_worker_embeds_and_writes_no_text(redis_url: str, tmp_path: Path) -> None:
    family = TINY_FAMILIES["qwen3"]
    model = write_gguf(family, family.model(), tmp_path / "embedder.gguf", Pooling.LAST)
    exact: dict[str, Any] = {"deterministic": True, "dtype": "float32", "threads": 1, "kv_cache_tokens": 2048}
    with (
        WorkerProcess(redis_url, model, "w", tmp_path / "log", model_name="embedder", **exact),
        Client(redis_url, model="embedder") as client,
    ):
        one, other, again = client.embed(["a llama", "an alpaca", "a llama"], timeout_s=60).vectors
        assert one == again != other
        assert sum(number * number for number in one) == pytest.approx(1, abs=1e-5)
        assert client.embed(["a llama"]).vectors == [one]
        with pytest.raises(GenerationError, match=r"prompt: this model embeds texts.* writes no text"):
            client.result(client.submit(prompt="x"), wait=True).raise_for_error()
