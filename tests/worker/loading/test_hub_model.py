"""The memory by which a file of a repository is chosen."""

from pathlib import Path

import pytest

from llama_herd.errors import SettingsError
from llama_herd.worker.loading.hub_model import weights_room
from llama_herd.worker.loading.machine import total_bytes
from llama_herd.worker.settings import WorkerSettings


def test_weights_may_take_two_thirds_of_what_the_worker_may() -> None:
    share = 0.05
    found = weights_room(WorkerSettings.read(device="cpu", memory_share=share))
    free = int(share * total_bytes("cpu"))
    assert found.num_bytes == max(0, free - 400_000_000) * 2 // 3
    assert found.where == f"of {free / 1e9:,.1f} GB free on cpu"


@pytest.fixture
def two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one shares the memory of the machine."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-1, 24000, NVIDIA X\n1, GPU-2, [N/A], NVIDIA GB10'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_cards")
def test_of_a_gpu_it_is_its_own_memory() -> None:
    found = weights_room(WorkerSettings.read(device="cuda:0"))
    assert found.num_bytes == (24_000 * 2**20 - 800_000_000) * 2 // 3
    assert found.where == "of 25.2 GB free on cuda:0"


@pytest.mark.usefixtures("two_cards")
def test_of_a_gpu_whose_memory_nobody_tells_a_file_is_to_be_named() -> None:
    with pytest.raises(SettingsError, match=r"how much memory cuda:1 has.*Fix: name one, or its type"):
        weights_room(WorkerSettings.read(device="cuda:1"))
