"""What a job is told of a lack of memory, from the very words of torch."""

import pytest
import torch

from llama_herd.worker.engine.engine import failure_of
from llama_herd.worker.engine.memory_error import FIX, MEMORY_ERROR

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
