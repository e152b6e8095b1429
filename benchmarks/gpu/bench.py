"""Bench: the card, its ceilings and the models that a run of the benchmark works with."""

import gc
from dataclasses import dataclass
from pathlib import Path

import torch
from gguf import GGMLQuantizationType as GGMLType

from benchmarks.floors import Floors, Format
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.random_model import write_random_model
from benchmarks.gpu.scale import Load, Scale
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings


@dataclass(frozen=True)
class Bench:
    """What every workload needs to know."""

    scale: Scale
    device: torch.device
    models: Path  # folder of the model files
    ceilings: Ceilings

    def model_path(self, format: Format) -> Path:
        """The model's file; written if it is not there yet."""
        path = self.models / f"{self.scale.name}.{format.name}.gguf"
        if not path.exists():
            self.models.mkdir(parents=True, exist_ok=True)
            write_random_model(path, self.scale.config, GGMLType[format.name], self.device)
        return path

    def settings(self, format: Format, load: Load) -> WorkerSettings:
        """A worker's settings: the defaults, and room for all rows of a load at once."""
        return WorkerSettings(
            model=self.model_path(format),
            device=str(self.device),
            slots=load.num_rows,
            kv_cache_tokens=load.cache_tokens,
        )

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

    def floors(self, format: Format) -> Floors:
        ceilings = self.ceilings
        return Floors(self.scale.config, format, ceilings.bytes_per_s, ceilings.matmul_flop_per_s)
