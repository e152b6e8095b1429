"""Kernels for a card, chosen where triton, a compiler and the card allow it and all results are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from llama_herd.model.kernels.trials import Needs
from llama_herd.model.kernels.unloaded import UnloadedKernels, no_kernels

if TYPE_CHECKING:
    from llama_herd.model.kernels.gpu.triton_kernels import TritonKernels

#: The first compute capability with bfloat16, and with copies beside the arithmetic.
LEAST_CAPABILITY = (8, 0)


def load_triton_kernels(needs: Needs, device: torch.device) -> TritonKernels | UnloadedKernels:
    """The kernels for a model on this device, or none and why: all models run in plain torch too."""
    try:
        from llama_herd.model.kernels.gpu.triton_kernels import checked
    except ImportError as error:
        return no_kernels(f"{error}. Fix: pip install triton")
    complaint = complaint_of(torch.cuda.get_device_capability(device))
    if complaint:
        return no_kernels(complaint)
    return checked(needs, device, torch.cuda.get_device_properties(device).multi_processor_count)


def complaint_of(capability: tuple[int, int]) -> str:
    """Why a card of this compute capability cannot run them; empty if it can."""
    if capability >= LEAST_CAPABILITY:
        return ""
    found, least = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
    return f"the GPU has compute capability {found}; it is slow, as bfloat16 and the kernels need {least}"
