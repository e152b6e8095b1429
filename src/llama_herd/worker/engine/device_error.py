"""What a device's errors mean: that it lacks memory, or that this process has lost it."""

import re
import sys

from llama_herd.errors import DeviceLost

#: torch raises OutOfMemoryError for what its own allocator lacks on a GPU. All else only words tell: of a
#: CPU's allocator, of CUDA's driver, of its libraries, and of Triton.
_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",
)
_ASKED = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)
_FREE = re.compile(r"of which ([\d.]+ \w+) is free")

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


def is_lack_of_memory(error: Exception) -> bool:
    """Whether an allocation has failed."""
    return _is_torchs(error, "OutOfMemoryError") or any(words in str(error) for words in _WORDS)


def numbers_of(error: Exception) -> str | None:
    """How much was asked for and how much was free, if torch says so."""
    asked, free = _ASKED.search(str(error)), _FREE.search(str(error))
    if asked is None:
        return None
    return f"{asked[1]} more were needed, {free[1] if free else 'less'} were free"


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
    return _is_torchs(error, "AcceleratorError") and not any(words in text for words in _PASSING)


def _is_torchs(error: Exception, name: str) -> bool:
    """Whether an error is torch's of this name: none is while torch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, getattr(torch, name))
