"""The kernels that compute this process's model: native ones on a CPU, Triton's on a GPU."""

from functools import cache
from pathlib import Path

import torch

from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.form import AnyKernels
from llama_herd.model.kernels.gpu.load import load_triton_kernels
from llama_herd.model.kernels.gpu.needs import Needs
from llama_herd.model.kernels.native import Kernels, load_kernels, no_kernels
from llama_herd.worker.loading.kernels_folder import kernels_folder
from llama_herd.worker.loading.memory_plan import compute_dtype
from llama_herd.worker.loading.threads import num_threads
from llama_herd.worker.settings import WorkerSettings


def kernels_of(settings: WorkerSettings, device: str, file: ModelFile) -> AnyKernels:
    """The kernels for these settings, or none and why."""
    if device != "cpu" and settings.triton == "off":
        return no_kernels("HERD_TRITON=off takes the plain path")
    if device != "cpu":
        return _triton_kernels(needs_of(settings, device, file), torch.device(device))
    if settings.deterministic:
        return no_kernels("HERD_DETERMINISTIC=true takes the plain path")
    if settings.weights == "dense":
        return no_kernels("HERD_WEIGHTS=dense leaves them nothing to multiply")
    return _loaded(kernels_folder(settings)).with_threads(num_threads(settings))


def needs_of(settings: WorkerSettings, device: str, file: ModelFile) -> Needs:
    """What a model asks of kernels on a GPU."""
    config = file.config
    return Needs(
        dtype=compute_dtype(settings, device),
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
    )


@cache
def _triton_kernels(needs: Needs, device: torch.device) -> AnyKernels:
    return load_triton_kernels(needs, device)


@cache
def _loaded(folder: Path) -> Kernels:
    return load_kernels(folder)
