"""Deterministic mode is refused by name where a GPU would compute: its kernels' parts are not fixed there."""

from pathlib import Path

import pytest

from llama_herd.errors import SettingsError
from llama_herd.worker.loading.servable_model import ServableModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf


def test_it_is_refused_before_anything_of_a_card_is_asked(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    settings = WorkerSettings.read(model=model, device="cuda:0", deterministic=True)
    needed = r"HERD_DETERMINISTIC=true needs HERD_DEVICE=cpu .*, but they are cuda:0 and float32"
    with pytest.raises(SettingsError, match=needed), ServableModel.open(settings, "cuda:0"):
        raise AssertionError("it was opened")
