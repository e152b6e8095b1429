"""Kernels that are loaded and checked: a CPU's once for each folder, a GPU's for each kind of model."""

from functools import cache
from pathlib import Path

import torch

from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.kernels.gpu.load import load_triton_kernels
from llama_herd.model.kernels.gpu.needs import Needs
from llama_herd.model.kernels.native import Kernels, load_kernels
from llama_herd.model.kernels.unloaded import UnloadedKernels
from llama_herd.model.weights.form import AnyKernels
from llama_herd.worker.loading.machine import num_threads
from llama_herd.worker.loading.memory_plan import compute_dtype, torch_dtype
from llama_herd.worker.settings import WorkerSettings

_native = cache(load_kernels)
_triton = cache(load_triton_kernels)


def native_kernels(folder: Path, settings: WorkerSettings) -> Kernels | UnloadedKernels:
    """Load the CPU kernels that are built and compute right, with as many threads as a worker has."""
    return _native(folder).with_threads(num_threads(settings))


def triton_kernels(settings: WorkerSettings, device: str, file: ModelFile) -> AnyKernels:
    """Load the GPU kernels that compute right for a model."""
    return _triton(needs_of(settings, device, file), torch.device(device))


def needs_of(settings: WorkerSettings, device: str, file: ModelFile) -> Needs:
    """Return the needs of a model on a GPU: the types, widths and heads that kernels must handle."""
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
    )
