"""Bench: the card, its ceilings, the models and the choices that a step works with."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.floors import Floors, Format
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.device_weights import draw_weights_on, write_hollow_model
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.random_model import write_random_model
from benchmarks.gpu.scale import Load, Scale
from llama_herd.model.config import LlamaConfig
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

#: Types of a file's matrices, and of its output.
TYPES = {
    Format.BF16: (GGMLType.BF16, GGMLType.BF16),
    Format.Q8_0: (GGMLType.Q8_0, GGMLType.Q8_0),
    Format.Q4_0: (GGMLType.Q4_0, GGMLType.Q6_K),
    Format.Q4_K_M: (GGMLType.Q4_K, GGMLType.Q6_K),
}


@dataclass(frozen=True)
class Bench:
    """What every workload needs to know."""

    scale: Scale
    device: torch.device
    models: Path  # folder of the model files
    ceilings: Ceilings | None  # None: not measured, so there are no floors
    off: tuple[str, ...] = ()  # the names of choices that are switched off
    choices: Mapping[str, Any] = field(default_factory=dict)  # the settings that this takes
    num_runs: int = 3  # counted, after one that is not

    @property
    def system(self) -> str:
        """Our name in results."""
        return OURS + "".join(f", no {name}" for name in self.off)

    def hollow_model(self, format: Format, config: LlamaConfig | None = None) -> Path:
        """A model whose weights this process draws on the device; there is no file of them."""
        draw_weights_on(self.device)
        shape = config or self.scale.config
        path = self.models / f"{self.scale.name}-{shape.num_layers}.{format.name}.hollow.gguf"
        if not path.exists():
            self.models.mkdir(parents=True, exist_ok=True)
            write_hollow_model(path, shape, lambda name: _type_of(format, name))
        return path

    def real_model(self, format: Format) -> Path:
        """A model with all its bytes in a file; written if it is not there yet."""
        path = self.models / f"{self.scale.name}.{format.name}.gguf"
        if not path.exists():
            self.models.mkdir(parents=True, exist_ok=True)
            write_random_model(path, self.scale.config, lambda name: _type_of(format, name), self.device)
        return path

    def settings(self, model: Path, load: Load) -> WorkerSettings:
        """A worker's settings: the defaults, room for all rows of a load at once, and the choices."""
        return WorkerSettings(
            model=model,
            device=str(self.device),
            slots=load.num_rows,
            kv_cache_tokens=load.cache_tokens,
            **self.choices,
        )

    def fitting(self, load: Load, format: Format) -> Load:
        """The load with as many rows as the card has room for, in sixteens."""
        if self.device.type == "cpu":
            return load
        floors = Floors(self.scale.config, format, 1.0, 1.0)
        total = torch.cuda.get_device_properties(self.device).total_memory
        room = 0.9 * total - floors.weight_bytes - self.scale.reserve_bytes
        num_rows = int(room // (floors.kv_bytes * replace(load, num_rows=1).cache_tokens))
        return replace(load, num_rows=max(1, min(load.num_rows, num_rows // 16 * 16)))

    def saturating(self, format: Format) -> dict[str, Load]:
        """The loads that keep all rows busy, by their workloads; the first takes the most room."""
        spread = self.fitting(self.scale.spread, format)
        return {"W3s": spread, "W3": replace(self.scale.saturation, num_rows=spread.num_rows)}

    def load(self, settings: WorkerSettings) -> LoadedModel:
        """A model and its cache in this process."""
        self.free_memory()
        return LoadedModel.load(settings, str(self.device))

    def free_memory(self) -> None:
        """Give back what nobody holds any more, for the next model, also in another process."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def floor(self, format: Format, of: Callable[[Floors], float]) -> float | None:
        """A floor, or none where ceilings are not known."""
        floors = self.floors(format)
        return None if floors is None else of(floors)

    def floors(self, format: Format) -> Floors | None:
        if self.ceilings is None:
            return None
        return Floors(self.scale.config, format, self.ceilings.bytes_per_s, self.ceilings.matmul_flop_per_s)

    def saturation_floor(self, format: Format, load: Load) -> float | None:
        """Generated tokens a second while all rows stay busy with requests of a load."""

        def tokens_per_s(floors: Floors) -> float:
            # Of a row's tokens that many are before the one that it writes, in the mean over time.
            written = (load.num_out + load.spread**2 / (3 * load.num_out)) / 2
            decode_s = floors.decode_s(load.num_rows, load.num_in + written) / load.num_rows
            return 1 / (decode_s + floors.prefill_flop(load.num_in) / floors.flop_per_s / load.num_out)

        return self.floor(format, tokens_per_s)

    def measurement(
        self,
        workload: str,
        format: Format,
        case: str,
        unit: str,
        runs: list[float],
        floor: float | None = None,
        note: str = "",
        part: str = "",
    ) -> Measurement:
        """A figure of ours."""
        case = f"{format.name}, {case}"
        return Measurement(workload, case, self.system, unit, tuple(runs), floor, note, part)


def _type_of(format: Format, name: str) -> GGMLType:
    matrices, output = TYPES[format]
    return output if name == "output.weight" else matrices
