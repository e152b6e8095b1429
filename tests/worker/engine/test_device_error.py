"""What real drivers and libraries say: which errors are the loss of a GPU, and what a job is told."""

import pytest
import torch

from llama_herd.errors import DeviceLost
from llama_herd.worker.engine.device_error import (
    is_lack_of_memory,
    is_lost,
    lost_by,
    raise_if_lost,
)
from llama_herd.worker.engine.graph_device import CaptureError
from llama_herd.worker.engine.step_failures import FIX, MEMORY_ERROR, failure_of

#: What torch adds to each error of CUDA, whatever it is.
ADVICE = """
Search for `cudaErrorName' in https://docs.nvidia.com/cuda/cuda-runtime-api/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be \
incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
LOST = (
    torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered{ADVICE}"),
    torch.AcceleratorError(f"CUDA error: uncorrectable ECC error encountered{ADVICE}"),
    torch.AcceleratorError(f"CUDA error: unspecified launch failure{ADVICE}"),
    torch.AcceleratorError("CUDA error: unknown error"),
    torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("Triton Error [CUDA]: misaligned address"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb)`"),
    RuntimeError("CUDA driver error: device-side assert triggered"),
    RuntimeError("No CUDA GPUs are available: no CUDA-capable device is detected"),
    RuntimeError("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost. Reboot the system"),
)
PASSING = (
    RuntimeError("shape '[3, 4]' is invalid for input of size 7"),
    RuntimeError("Triton Error [CUDA]: invalid argument"),
    torch.AcceleratorError(f"CUDA error: invalid configuration argument{ADVICE}"),
    torch.AcceleratorError(f"CUDA error: operation not permitted when stream is capturing{ADVICE}"),
    CaptureError(f"CUDA error: operation failed due to a previous error during capture{ADVICE}"),
    ValueError("a prompt that says: GPU is lost"),
)
MEMORY = (
    torch.AcceleratorError(f"CUDA error: out of memory{ADVICE}"),
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
)


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_card_that_is_lost_is_known_by_any_type_of_error(error: Exception) -> None:
    with pytest.raises(DeviceLost, match=r"^[^\n]+$") as raised:
        raise_if_lost(error)
    assert raised.value.__cause__ is error
    assert str(error).startswith(str(raised.value))
    assert lost_by(raised.value) is not None, "it stays lost"


@pytest.mark.parametrize("error", [*PASSING, *MEMORY], ids=str)
def test_what_is_wrong_with_one_call_is_no_loss(error: Exception) -> None:
    raise_if_lost(error)
    assert not is_lost(error)


@pytest.mark.parametrize("error", MEMORY, ids=str)
def test_a_lack_of_memory_is_one_whoever_says_so(error: Exception) -> None:
    assert is_lack_of_memory(error)


CUDA_WORDS = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which "
    "10.50 MiB is free. Including non-PyTorch memory, this process has 79.08 GiB memory in use."
)


def test_the_numbers_of_a_gpu_and_the_fix_are_named() -> None:
    failure = failure_of(torch.OutOfMemoryError(CUDA_WORDS))
    assert (failure.code, failure.retriable) == ("out_of_memory", True)
    assert failure.message.endswith(f": 20.00 MiB more were needed, 10.50 MiB were free. {FIX}")


def test_an_allocation_that_a_cpu_refuses_is_one_too() -> None:
    with pytest.raises(RuntimeError) as refusal:
        torch.empty(1 << 50, dtype=torch.uint8)
    failure = failure_of(refusal.value)
    assert failure.code == "out_of_memory"
    assert f"{1 << 50} bytes more were needed" in failure.message


def test_a_lack_without_numbers_and_other_errors_are_told_apart() -> None:
    assert failure_of(torch.OutOfMemoryError("CUDA out of memory")) == MEMORY_ERROR
    assert failure_of(RuntimeError("shapes differ")).code == "model_error"
