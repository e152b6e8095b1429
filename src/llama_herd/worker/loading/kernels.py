"""The kernels that compute this process's model: native ones on a CPU, Triton's on a GPU."""

import os
from pathlib import Path

from llama_herd.errors import SettingsError
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.kernels.unloaded import built_kernels, no_kernels
from llama_herd.model.weights.form import AnyKernels
from llama_herd.worker.settings import WorkerSettings


def kernels_of(
    settings: WorkerSettings, device: str, file: ModelFile, *, is_only_planned: bool = False
) -> AnyKernels:
    """The kernels for these settings, or none and why.

    `is_only_planned`: those of a CPU are not loaded and tried, but taken as right, which needs no torch.
    """
    reason = _plain_path(settings, device)
    if reason:
        return no_kernels(reason)
    if device != "cpu":
        from llama_herd.worker.loading.loaded_kernels import triton_kernels

        return triton_kernels(settings, device, file)
    try:
        folder = kernels_folder(settings)
    except SettingsError as error:
        return no_kernels(str(error))
    if is_only_planned:
        return built_kernels(folder)
    from llama_herd.worker.loading.loaded_kernels import native_kernels

    return native_kernels(folder, settings)


def _plain_path(settings: WorkerSettings, device: str) -> str:
    """Why these settings want no kernels; empty: they do."""
    if device != "cpu":
        return "HERD_TRITON=off takes the plain path" if settings.triton == "off" else ""
    if settings.deterministic:
        return "HERD_DETERMINISTIC=true takes the plain path"
    return "HERD_WEIGHTS=dense leaves them nothing to multiply" if settings.weights == "dense" else ""


def kernels_folder(settings: WorkerSettings) -> Path:
    """The folder in which native kernels are built and looked for: the set one, else in the user's cache.

    Raises SettingsError for a user without a home.
    """
    if settings.kernels_dir:
        return Path(settings.kernels_dir).absolute()
    listed = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        cache = listed if listed.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        raise SettingsError(
            "this user has no home folder to keep kernels in. Fix: HERD_KERNELS_DIR"
        ) from None
    return cache / "llama-herd" / "kernels"
