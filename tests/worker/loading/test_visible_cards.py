"""Which cards CUDA_VISIBLE_DEVICES leaves, as CUDA itself reads it."""

from pathlib import Path

import pytest

from llama_herd.errors import DeviceError
from llama_herd.worker.loading import device
from llama_herd.worker.loading.device import Card, default_slots, on_device, pinned_card, visible_cards
from llama_herd.worker.settings import WorkerSettings

CARDS = [Card("0", "GPU-aaa1", "NVIDIA H200", 150.7), Card("1", "GPU-bbb2", "NVIDIA L4", 24.1)]


@pytest.fixture(autouse=True)
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cards", lambda: CARDS)
    monkeypatch.setattr(device, "version", lambda name: "2.13.0+cu130")


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("", []),
        ("-1", []),
        ("1,-1,0", ["NVIDIA L4"]),
        ("1, 0", ["NVIDIA L4", "NVIDIA H200"]),
        ("GPU-bbb2", ["NVIDIA L4"]),
        ("GPU-b,GPU-aaa", ["NVIDIA L4", "NVIDIA H200"]),
        ("MIG-ccc", ["MIG-ccc"]),
    ],
)
def test_the_list_ends_before_a_negative_number(
    monkeypatch: pytest.MonkeyPatch, listed: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert visible_cards() == names


def test_auto_is_the_cpu_where_all_cards_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert on_device(WorkerSettings.read(device="auto")).device == "cpu"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "which", lambda name: f"/usr/bin/{name}")


@pytest.fixture
def no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The driver has a GPU that nvidia-smi lists no more."""
    (tmp_path / "0000:01:00.0").mkdir()
    monkeypatch.setattr(device, "DRIVER", tmp_path)
    monkeypatch.setattr(device, "_cards", list)


@pytest.mark.usefixtures("no_answer")
def test_a_container_without_the_drivers_programs_is_told_to_take_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="NVIDIA_DRIVER_CAPABILITIES=compute,utility"):
        on_device(WorkerSettings.read(device="auto"))


@pytest.mark.usefixtures("no_answer", "program")
def test_auto_is_not_the_cpu_where_a_card_has_failed() -> None:
    with pytest.raises(DeviceError, match="lists no GPU, and the driver has 1"):
        on_device(WorkerSettings.read(device="auto"))


@pytest.mark.usefixtures("no_answer")
def test_auto_is_the_cpu_where_failed_cards_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert on_device(WorkerSettings.read(device="auto")).device == "cpu"


@pytest.mark.parametrize("pinned", ["1", "GPU-bbb2", "GPU-b", " GPU-bbb "])
def test_a_card_has_one_name_however_it_was_pinned(monkeypatch: pytest.MonkeyPatch, pinned: str) -> None:
    """By which it is locked: CUDA takes the beginning of a UUID for all of it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", pinned)
    assert pinned_card() == "GPU-bbb2"


@pytest.mark.parametrize(("device", "slots"), [("auto", 256), ("cuda:1", 96), ("cpu", 32)])
def test_slots_follow_the_memory_of_the_card(device: str, slots: int) -> None:
    assert on_device(WorkerSettings.read(device=device)).slots == slots
    assert on_device(WorkerSettings.read(device=device, slots=7)).slots == 7


@pytest.mark.parametrize(("gb", "slots"), [(0, 32), (8.6, 32), (16, 64), (24, 96), (42.9, 160), (85, 256)])
def test_slots_are_few_where_memory_is_little_or_unknown(gb: float, slots: int) -> None:
    assert default_slots(gb) == slots
