"""Choosing the device, with a stand-in for nvidia-smi where there is no card."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from llama_herd.errors import DeviceError
from llama_herd.worker.loading import device
from llama_herd.worker.loading.device import on_device, pin_device, pinned_card
from llama_herd.worker.settings import WorkerSettings

REPORT = "0, GPU-aaa, 143771, NVIDIA H200\n1, GPU-bbb, [N/A], NVIDIA L4"


@pytest.fixture
def two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is pinned is let go of afterwards; torch could use them."""
    monkeypatch.setattr(device, "version", lambda name: "2.13.0+cu130")
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{REPORT}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with mock.patch.dict(os.environ):
        yield


def test_cpu_needs_no_card() -> None:
    assert pin_device("cpu") == "cpu"


@pytest.mark.usefixtures("two_cards")
def test_a_card_becomes_the_only_one_that_torch_sees() -> None:
    assert pin_device("cuda:1") == "cuda:0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.usefixtures("two_cards")
def test_numbers_count_among_the_cards_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbb")
    assert pin_device("cuda:0") == "cuda:0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-bbb"


@pytest.mark.usefixtures("two_cards")
def test_a_wrong_number_lists_the_cards() -> None:
    with pytest.raises(DeviceError, match=r"cuda:2.*cuda:0 = NVIDIA H200; cuda:1 = NVIDIA L4"):
        pin_device("cuda:2")


@pytest.mark.usefixtures("two_cards")
def test_a_pinned_card_is_known_by_its_uuid() -> None:
    pin_device("cuda:1")
    assert pinned_card() == "GPU-bbb"
    os.environ["CUDA_VISIBLE_DEVICES"] = "MIG-ccc"
    assert pinned_card() == "MIG-ccc", "what nvidia-smi does not list by itself"


@pytest.mark.usefixtures("two_cards")
def test_a_driver_that_does_not_answer_is_not_taken_for_a_machine_without_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "SMI_S", 0.0)
    for named in ("auto", "cuda:1"):
        with pytest.raises(DeviceError, match="nvidia-smi has not answered within 0 s"):
            on_device(WorkerSettings.read(device=named))
    assert on_device(WorkerSettings.read(device="cpu")).device == "cpu"


def test_without_a_driver_the_list_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="none"):
        pin_device("cuda:0")


def device_of(**fields: str) -> str:
    return on_device(WorkerSettings.read(**fields)).device


@pytest.mark.usefixtures("two_cards")
def test_auto_takes_the_first_card_and_nothing_else_is_changed() -> None:
    assert device_of(device="auto") == "cuda:0"
    assert device_of(device="cpu") == "cpu"
    assert device_of(device="cuda:1") == "cuda:1"


@pytest.mark.usefixtures("two_cards")
def test_auto_is_the_cpu_where_torch_cannot_use_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "version", lambda name: "2.13.0+cpu")
    assert device_of(device="auto") == "cpu"


def test_auto_is_the_cpu_where_there_is_no_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device_of(device="auto") == "cpu"
