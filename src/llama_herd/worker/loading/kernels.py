"""The kernels that compute this process's model: native ones on a CPU, Triton's on a GPU."""

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from llama_herd.errors import SettingsError
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.kernels.unloaded import UnloadedKernels, built_kernels, no_kernels
from llama_herd.model.weights.form import AnyKernels
from llama_herd.worker.loading.machine import num_threads
from llama_herd.worker.loading.memory_plan import compute_dtype, torch_dtype
from llama_herd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from llama_herd.model.kernels.native import Kernels
    from llama_herd.model.kernels.trials import Needs


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
        return _triton_kernels(needs_of(settings, device, file), device)
    try:
        folder = kernels_folder(settings)
    except SettingsError as error:
        return no_kernels(str(error))
    if is_only_planned:
        return built_kernels(folder)
    return _native_kernels(folder).with_threads(num_threads(settings))


@cache
def _native_kernels(folder: Path) -> "Kernels | UnloadedKernels":
    """Those of a CPU that are built and compute right."""
    from llama_herd.model.kernels.native import load_kernels

    return load_kernels(folder)


@cache
def _triton_kernels(needs: "Needs", device: str) -> AnyKernels:
    """Those of a GPU that compute right for a model."""
    import torch

    from llama_herd.model.kernels.gpu.load import load_triton_kernels

    return load_triton_kernels(needs, torch.device(device))


def needs_of(settings: WorkerSettings, device: str, file: ModelFile) -> "Needs":
    """Return the needs of a model on a GPU: the types, widths and heads that kernels must handle."""
    from llama_herd.model.kernels.trials import Needs

    config = file.config
    return Needs(
        dtype=torch_dtype(compute_dtype(settings, device)),
        widths=frozenset(
            (info.type, info.shape[1])
            for info in file.tensors
            if len(info.shape) == 2 and settings.weights != "dense"
        ),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale or config.head_dim**-0.5,
        windows=frozenset(config.window(layer) for layer in range(config.num_layers)),
        cap=config.score_cap,
        hidden_size=config.hidden_size,
        ffn_size=config.ffn_size,
        activation=config.family.activation,
        qk_norm=config.family.qk_norm,
        post_norms=config.family.post_norms,
    )


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
