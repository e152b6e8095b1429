"""The one device of this process, chosen before torch is imported."""

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from shutil import which
from typing import NoReturn

from llama_herd.errors import DeviceError
from llama_herd.worker.settings import WorkerSettings

#: Where the driver has a folder for each GPU, also for one that no longer answers.
DRIVER = Path("/proc/driver/nvidia/gpus")

#: How long nvidia-smi may take. It wakes up cards that nothing keeps awake, and workers that start together
#: ask together.
SMI_S = 60.0

#: Where no setting says how many slots a GPU has: so many for each GB of its memory, within these bounds.
SLOTS_A_GB, LEAST_SLOTS, MOST_SLOTS = 4, 32, 256

#: What `pin_device` has changed, as it was before; None: it was not there.
_unpinned: dict[str, str | None] = {}


@dataclass(frozen=True)
class Card:
    """A GPU as nvidia-smi tells of it, or a part of one of which it tells nothing else."""

    index: str
    uuid: str
    name: str
    gb: float = 0.0


def on_device(settings: WorkerSettings) -> WorkerSettings:
    """Return settings with `auto` replaced by the first GPU or cpu, and with the slots of that device.

    Where a server computes, its kind stands for the device.
    Raises DeviceError where there is a GPU that cannot be used: the CPU is no substitute for one that has
    failed, of which nobody would notice any more.
    """
    if settings.is_foreign:
        return settings.as_foreign()
    if settings.device == "auto":
        device = "cuda:0" if has_cuda_build() and _has_card() else "cpu"
        settings = settings.model_copy(update={"device": device})
    if settings.device == "cpu" or "slots" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"slots": default_slots(card_gb(settings.device))})


def default_slots(card_gb: float) -> int:
    """Slots of a GPU with so much memory where no setting says how many."""
    return max(LEAST_SLOTS, min(MOST_SLOTS, int(card_gb) * SLOTS_A_GB // 16 * 16))


def card_gb(device: str) -> float:
    """Memory of a GPU that this process may use; 0 if nvidia-smi does not tell."""
    index, cards = int(device.removeprefix("cuda:")), _visible()
    return cards[index].gb if index < len(cards) else 0.0


def _has_card() -> bool:
    """Whether there is a GPU. Raises DeviceError where the driver has one that nvidia-smi does not list."""
    if visible_cards():
        return True
    is_hidden = "CUDA_VISIBLE_DEVICES" in os.environ
    num_cards = 0 if is_hidden or not DRIVER.is_dir() else len(list(DRIVER.iterdir()))
    if num_cards and which("nvidia-smi") is None:
        raise DeviceError(
            f"HERD_DEVICE=auto, and the driver has {num_cards} GPUs, but nvidia-smi is missing. "
            "Fix: NVIDIA_DRIVER_CAPABILITIES=compute,utility for the container, or set HERD_DEVICE=cpu"
        )
    if num_cards:
        raise DeviceError(
            f"HERD_DEVICE=auto, but nvidia-smi lists no GPU, and the driver has {num_cards}. "
            "Fix: see what nvidia-smi says of it, or set HERD_DEVICE=cpu"
        )
    return False


def pin_device(device: str) -> str:
    """Make `device` (cpu or cuda:N, N as nvidia-smi counts) the only one that torch will see.

    Returns torch's name for it: cpu, or cuda:0. Call before torch is imported: a CUDA runtime
    that has started no longer looks at CUDA_VISIBLE_DEVICES.

    Raises DeviceError, which lists the devices, when there is none of that number.
    """
    if device == "cpu":
        return device
    index = int(device.removeprefix("cuda:"))
    cards = visible_cards()
    if index >= len(cards):
        found = "; ".join(f"cuda:{i} = {name}" for i, name in enumerate(cards)) or "none"
        raise DeviceError(
            f"HERD_DEVICE={device}, but the GPUs here are: {found}. Fix: name one of them, or cpu."
        )
    listed = _unpinned["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = listed.split(",")[index] if listed else str(index)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return torch_name(device)


def begin_anew(**variables: str) -> NoReturn:
    """Replace this process by the same command with other variables: nothing mends a broken CUDA context."""
    environment = {**os.environ, **_unpinned, **variables}
    given = {name: value for name, value in environment.items() if value is not None}
    os.execve(sys.executable, sys.orig_argv, given)


def torch_name(device: str) -> str:
    """torch's name of a device that is pinned, the only one that torch sees."""
    return "cpu" if device == "cpu" else "cuda:0"


def has_cuda_build() -> bool:
    """Whether the torch that is installed could use a GPU at all; it is not imported for that."""
    try:
        return not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


def visible_cards() -> list[str]:
    """Names of the GPUs that this process may use, in the order of their numbers.

    As CUDA reads its variable, a negative number ends the list.
    """
    return [card.name for card in _visible()]


def _visible() -> list[Card]:
    cards = _cards()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return cards
    keys = takewhile(lambda key: not key.startswith("-"), map(str.strip, listed.split(",")))
    return [_named(key, cards) for key in keys if key]


def _named(key: str, cards: list[Card]) -> Card:
    """The card that CUDA takes by a number, or by the beginning of a UUID; nvidia-smi may not tell of it."""
    found = (one for one in cards if one.index == key or one.uuid.startswith(key))
    return next(found, Card(key, key, key))


def pinned_card() -> str:
    """The UUID of the GPU that `pin_device` has pinned; what it was pinned by if nvidia-smi knows no more."""
    pinned = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    return _named(pinned, _cards()).uuid if pinned else ""


def _cards() -> list[Card]:
    """The GPUs of this machine. Raises DeviceError if nvidia-smi does not answer."""
    try:
        report = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_S,
            check=True,
        ).stdout
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"nvidia-smi has not answered within {SMI_S:g} s. Fix: see what it does by itself; "
            "`nvidia-smi -pm 1` keeps cards awake"
        ) from None
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [map(str.strip, line.split(",", 3)) for line in report.splitlines() if line.strip()]
    return [Card(index, uuid, name, _gb(mib)) for index, uuid, mib, name in rows]


def _gb(mib: str) -> float:
    """Convert a number of MiB to GB; 0 for a card that shares the machine's memory, which has none."""
    return int(mib) * 2**20 / 1e9 if mib.isdigit() else 0.0
