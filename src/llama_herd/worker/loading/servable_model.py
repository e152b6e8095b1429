"""Whether a worker can serve a model with these settings on this machine: one check for all commands."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from llama_herd.errors import ModelFileError, SettingsError
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.files.open_model import open_model
from llama_herd.model.shape.purpose import Ranks
from llama_herd.model.tiling import FIXED, FREE, Tiling
from llama_herd.model.weights.form import AnyKernels
from llama_herd.worker.loading.kernels import kernels_of
from llama_herd.worker.loading.memory_plan import MemoryPlan, compute_dtype
from llama_herd.worker.loading.servable_texts import ServableTexts
from llama_herd.worker.settings import WorkerSettings


@dataclass(frozen=True)
class ServableModel(ServableTexts):
    """A model's file, and all that is made from it before its weights are read.

    Workers, `herd inspect` and `herd doctor` all use it, so they refuse the same models:

        with ServableModel.open(settings, device) as servable:
            servable.fitting_plan()
    """

    file: ModelFile
    tiling: Tiling
    device: str  # torch's name of it
    is_only_planned: bool = False

    @classmethod
    @contextmanager
    def open(cls, settings: WorkerSettings, device: str, *, is_only_planned: bool = False) -> Iterator[Self]:
        """Open the model of these settings. Raises ModelFileError or SettingsError, with the fix.

        `is_only_planned`: native kernels are taken as right without a trial, which would need torch.
        """
        tiling = _tiling(settings, device)
        with open_model(settings.model, settings.pooling) as file:
            servable = cls(file, file.read_tokenizer(), settings, tiling, device, is_only_planned)
            if isinstance(file.purpose, Ranks) and not servable.templates:
                problem = "has no chat template, which is needed to rank"
                raise ModelFileError(f"{file.metadata.source}: {problem}. Fetch it again.")
            yield servable

    @cached_property
    def kernels(self) -> AnyKernels:
        """The kernels that compute the model. A GPU's are compiled now, if they never were before."""
        return kernels_of(self.settings, self.device, self.file, is_only_planned=self.is_only_planned)

    def weights_digest(self) -> str:
        return self.file.weights_digest()

    def plan(self) -> MemoryPlan:
        """The memory that it takes, fitting or not. Raises SettingsError for settings that do not suit it."""
        return MemoryPlan.for_model(self.settings, self.file, self.device, self.kernels)

    def fitting_plan(self) -> MemoryPlan:
        """The memory that it takes. Raises SettingsError also when the device has too little."""
        plan = self.plan()
        plan.check(self.settings.model.name)
        return plan


def _tiling(settings: WorkerSettings, device: str) -> Tiling:
    if not settings.deterministic:
        return FREE
    if device != "cpu" or compute_dtype(settings, device) != "float32":
        raise SettingsError(
            f"HERD_DETERMINISTIC=true needs HERD_DEVICE=cpu and HERD_DTYPE=float32 or auto, "
            f"but they are {settings.device} and {settings.dtype}. "
            "Fix: set these, or leave out HERD_DETERMINISTIC"
        )
    return FIXED
