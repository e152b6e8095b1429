"""Which errors of a GPU leave nothing of it to this process: every later call would fail, too."""

import torch

from llama_herd.errors import DeviceLost
from llama_herd.worker.engine.memory_error import is_lack_of_memory

#: What CUDA's driver, its libraries and Triton say of a context that is gone, in any type of exception.
#: Source: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
_LOST = (
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "hardware stack error",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "unspecified launch failure",
    "launch timed out",
    "device-side assert triggered",
    "uncorrectable ECC",
    "uncorrectable NVLink",
    "GPU is lost",
    "GPU requires reset",
    "busy or unavailable",
    "no CUDA-capable device",
    "context is destroyed",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_MAPPING_ERROR",
)
#: What is wrong with one call, and not with the card.
_PASSING = ("invalid argument", "invalid configuration", "too many resources", "capture", "capturing")


def raise_if_lost(error: Exception) -> None:
    """Raise DeviceLost in place of an error after which the device answers no more."""
    if (lost := lost_by(error)) is not None:
        raise lost from error


def lost_by(error: Exception) -> DeviceLost | None:
    """The loss that an error tells of, if it does; without the advice on debugging that torch adds."""
    return DeviceLost(str(error).strip().partition("\n")[0]) if is_lost(error) else None


def is_lost(error: Exception) -> bool:
    """Whether this process has lost its device."""
    if isinstance(error, DeviceLost):
        return True
    if not isinstance(error, RuntimeError) or is_lack_of_memory(error):
        return False
    text = str(error)
    if any(words in text for words in _LOST):
        return True
    return isinstance(error, torch.AcceleratorError) and not any(words in text for words in _PASSING)
