"""The native kernels that multiply this process's model."""

from functools import cache
from pathlib import Path

from llama_herd.model.kernels.native import Kernels, load_kernels, no_kernels
from llama_herd.worker.loading.kernels_folder import kernels_folder
from llama_herd.worker.loading.threads import num_threads
from llama_herd.worker.settings import WorkerSettings


def kernels_of(settings: WorkerSettings, device: str) -> Kernels:
    """The kernels for these settings, or none and why."""
    if device != "cpu":
        return no_kernels("there are none for a GPU")
    if settings.deterministic:
        return no_kernels("HERD_DETERMINISTIC=true takes the plain path")
    if settings.weights == "dense":
        return no_kernels("HERD_WEIGHTS=dense leaves them nothing to multiply")
    return _loaded(kernels_folder(settings)).with_threads(num_threads(settings))


@cache
def _loaded(folder: Path) -> Kernels:
    return load_kernels(folder)
