"""Slots and cache that a worker takes by default on GPUs of several sizes, for Llama 3 8B in several formats.

    python -m benchmarks.card_sizes [--write]

No card is there: a worker's own plan says it, for a card that is empty but for what CUDA itself takes.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from gguf import GGMLQuantizationType as GGMLType

from benchmarks.conditions import conditions
from benchmarks.gpu.device_weights import write_hollow_model
from benchmarks.measured import Report, Table, run_command
from benchmarks.shapes import random_config
from llama_herd.errors import SettingsError
from llama_herd.model.files.model_file import open_model
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES
from llama_herd.model.kernels.unloaded import UnloadedKernels
from llama_herd.worker.loading.device import default_slots
from llama_herd.worker.loading.memory_plan import MemoryPlan
from llama_herd.worker.settings import WorkerSettings

GB = 1e9
#: What is printed on a card is what nvidia-smi shows, but for the driver's own.
CARDS_GB = (8, 16, 24, 40, 80, 141)
#: Of a card, for the driver.
DRIVER_BYTES = 500e6
FORMATS = {"Q4_0": GGMLType.Q4_0, "Q8_0": GGMLType.Q8_0, "bf16": GGMLType.BF16}
LLAMA_3_8B = random_config(
    hidden_size=4_096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    ffn_size=14_336,
    vocab_size=128_256,
    context_length=8_192,
)


class KernelsThere(UnloadedKernels):
    """Triton's kernels as a worker would find them on a card."""

    device_type: ClassVar[str] = "cuda"
    prefill_attention: ClassVar[object] = "of torch"  # type: ignore[assignment]


def plan_for(model: Path, card_gb: float) -> MemoryPlan:
    """The plan of a worker on a card of this size that is empty but for the driver."""
    settings = WorkerSettings(model=model, device="cuda:0", slots=default_slots(card_gb))
    with open_model(model) as file:
        kernels = KernelsThere("planned", PARTED_TYPES)
        return MemoryPlan.for_model(settings, file, "cuda:0", kernels, free=int(card_gb * GB - DRIVER_BYTES))


def planned(model: Path, card_gb: float) -> dict[str, Any]:
    """What a worker takes of a card of this size, or why it does not start."""
    plan = plan_for(model, card_gb)
    facts = {"slots": plan.step.slots, "cache_tokens": plan.kv_cache_tokens, "bytes": plan.num_bytes}
    try:
        plan.check(model.name)
    except SettingsError:
        facts["cache_tokens"] = 0
    return facts


def measure() -> Report:
    with TemporaryDirectory() as folder:
        models = {
            name: write_hollow_model(Path(folder) / f"{name}.gguf", LLAMA_3_8B, type)
            for name, type in FORMATS.items()
        }
        found = {name: {str(card): planned(path, card) for card in CARDS_GB} for name, path in models.items()}
    return {"benchmark": "card_sizes", "conditions": conditions(), "plans": found}


def tables(report: Report) -> list[Table]:
    rows = [
        [f"{card} GB", next(iter(report["plans"].values()))[str(card)]["slots"], *_cells(report, str(card))]
        for card in CARDS_GB
    ]
    title = (
        "Slots, and tokens of KV cache, that a worker of Llama 3 8B takes by default; never tried on a card"
    )
    return [Table(["card", "slots", *report["plans"]], rows, title)]


def _cells(report: Report, card: str) -> list[str]:
    tokens = [plans[card]["cache_tokens"] for plans in report["plans"].values()]
    return [f"{one:,}" if one else "does not fit" for one in tokens]


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or "")
