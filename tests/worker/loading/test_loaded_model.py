"""What is told of a model as it is loaded, and what tenants share of it."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llama_herd.errors import GenerationError
from llama_herd.model.text.chat import Chat
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.model.text.helper_processes import helpers
from tests.tiny import write_tiny_gguf


def test_what_of_its_files_does_not_count_is_told(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    settings = WorkerSettings(model=path, kv_cache_tokens=1024, threads=1, pooling="mean")
    with capture_logs() as lines, LoadedModel.load(settings, "cpu"):
        pass
    assert any("HERD_POOLING=mean" in str(line.get("reason")) for line in lines)


@pytest.mark.long
@pytest.mark.parametrize(("tenants", "num_helpers"), [("", 1), ("acme,globex,initech", 2)])
def test_each_tenant_has_a_helper_for_its_chats_up_to_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tenants: str, num_helpers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    path = write_tiny_gguf(tmp_path / "chat.gguf", chat_template="{{ messages[0].content }}")
    settings = WorkerSettings(model=path, kv_cache_tokens=1024, threads=1, tenants=tenants)
    model = LoadedModel.load(settings, "cpu")
    (standing,) = helpers()
    standing.send_signal(signal.SIGSTOP)  # until its time is up

    def is_rendered(text: str) -> bool:
        assert model.maker.chat is not None
        try:
            return bool(model.maker.chat.encode(Chat([{"role": "user", "content": text}])))
        except GenerationError:
            return False

    with ThreadPoolExecutor() as threads:
        assert sorted(threads.map(is_rendered, ("a", "b", "c"))) == [False, True, True]
    assert len(helpers()) == num_helpers
    model.close()
    assert helpers() == []
