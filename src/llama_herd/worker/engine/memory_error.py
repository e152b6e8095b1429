"""The error for a device without enough memory: what was asked for, what was free, and the fix."""

import re

import torch

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.protocol.events import Failure

FIX = "Fix: lower HERD_SLOTS, HERD_PREFILL_TOKENS or HERD_KV_CACHE_TOKENS of the worker"

#: For an error that names no numbers.
MEMORY_ERROR = Failure(
    code=ErrorCode.OUT_OF_MEMORY, message=f"the device lacks memory for the job's next tokens. {FIX}"
)

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


def is_lack_of_memory(error: Exception) -> bool:
    """Whether an allocation has failed."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)


def numbers_of(error: Exception) -> str | None:
    """How much was asked for and how much was free, if torch says so."""
    asked, free = _ASKED.search(str(error)), _FREE.search(str(error))
    if asked is None:
        return None
    return f"{asked[1]} more were needed, {free[1] if free else 'less'} were free"


def memory_failure(error: Exception) -> Failure:
    """The error that a job gets, with the numbers if torch names them."""
    numbers = numbers_of(error)
    if numbers is None:
        return MEMORY_ERROR
    message = f"the device lacks memory for the job's next tokens: {numbers}. {FIX}"
    return MEMORY_ERROR.model_copy(update={"message": message})
