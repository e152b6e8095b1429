"""Triton's kernels on a card, or else in its interpreter. Without triton each test is skipped by name."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

HAS_TRITON, HAS_CARD = find_spec("triton") is not None, torch.cuda.is_available()
if HAS_TRITON and not HAS_CARD:
    os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports triton


@pytest.fixture(scope="session")
def device() -> Iterator[torch.device]:
    """What kernels run on."""
    if not HAS_TRITON:
        pytest.skip("triton is not installed: make test-kernels")
    if HAS_CARD:
        yield torch.device("cuda:0")
        return
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip(
            f"Triton's interpreter needs numpy below 2.4, this is {np.__version__}: make test-kernels"
        )
    with pytest.MonkeyPatch.context() as patch:
        _mend_bfloat16(patch)
        yield torch.device("cpu")


def _mend_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as bits: its `dot` takes them for numbers, and it never rounds up."""
    from triton import language as tl
    from triton.runtime import interpreter

    dot, convert = interpreter.InterpreterBuilder.create_dot, interpreter._convert_float

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        numbers = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(numbers, tl.float32)

    def rounded(numbers: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(numbers, source, target, mode)
        bits = torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16().view(torch.int16)
        return bits.numpy().view(np.uint16).reshape(numbers.shape)

    patch.setattr(interpreter, "_convert_float", rounded)
    patch.setattr(
        interpreter.InterpreterBuilder,
        "create_dot",
        lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest),
    )
